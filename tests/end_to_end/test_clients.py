"""Clients from PyPI, unchanged, against `quire serve` with the default model: what their users write first. OpenAI's own
has a file of its own, test_openai.py."""

import asyncio
import os
import typing

import pytest
from program import needs_model
from served import serve

pydantic = pytest.importorskip("pydantic")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network for prices when it is imported

pytestmark = needs_model

ASKED = "Describe a cat."


class Pet(pydantic.BaseModel):
    """A pet. Bounded: very small models do not know when to end a string."""

    kind: typing.Literal["cat", "dog"]
    legs: int = pydantic.Field(ge=0, le=8, description="How many legs it has.")
    tags: list[typing.Literal["small", "large"]] = pydantic.Field(default_factory=list, max_length=2)
    born: typing.Optional[typing.Annotated[str, pydantic.Field(json_schema_extra={"format": "date"})]] = None


def get_weather(city: typing.Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return f"Sunny in {city}."


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("serve"), "--served-model-name", "small") as running:
        yield running


@pytest.fixture(scope="module")
def url(server):
    return f"http://127.0.0.1:{server.port}/v1"


# --- litellm


@pytest.fixture(scope="module")
def lite(url):
    litellm = pytest.importorskip("litellm")
    place = {"model": "openai/small", "api_base": url, "api_key": "none", "temperature": 0, "max_tokens": 60}

    def complete(function=litellm.completion, **options):
        return function(**{**place, "messages": [{"role": "user", "content": ASKED}], **options})

    complete.library = litellm
    return complete


def test_litellm(lite):
    whole = lite(max_tokens=12)
    assert whole.choices[0].message.content and whole.usage.completion_tokens == 12
    chunks = list(lite(max_tokens=12, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    later = asyncio.run(lite(lite.library.acompletion, max_tokens=12))
    assert later.choices[0].message.content == text


def test_litellm_tools_and_schemas(lite):
    forced = {"type": "function", "function": {"name": "get_weather"}}
    [call] = lite(tools=[WEATHER], tool_choice=forced).choices[0].message.tool_calls
    assert call.function.name == "get_weather" and "city" in call.function.arguments
    # The answer goes back as it came, with all that the library adds to it.
    first = lite(tools=[WEATHER], tool_choice=forced).choices[0].message
    result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "Sunny."}
    asked = [{"role": "user", "content": [{"type": "text", "text": "Rome?", "cache_control": {"type": "ephemeral"}}]}]
    assert lite(messages=[*asked, first.model_dump(), result], tools=[WEATHER], max_tokens=4).choices
    parsed = lite(response_format=Pet, max_tokens=100).choices[0].message.content
    assert Pet.model_validate_json(parsed)


def test_litellm_embeddings(lite, url):
    answer = lite.library.embedding(model="openai/small", input=["a", "b"], api_base=url, api_key="none")
    assert len(answer.data) == 2 and answer.data[0]["embedding"] != answer.data[1]["embedding"]


# --- langchain-openai


@pytest.fixture(scope="module")
def chain(url):
    langchain = pytest.importorskip("langchain_openai")
    return langchain.ChatOpenAI(base_url=url, api_key="none", model="small", temperature=0, max_tokens=100)


def test_langchain(chain):
    short = chain.bind(max_tokens=12)
    whole = short.invoke(ASKED)
    assert whole.content and whole.usage_metadata["output_tokens"] == 12
    assert "".join(chunk.content for chunk in short.stream(ASKED)) == whole.content
    assert asyncio.run(short.ainvoke(ASKED)).content == whole.content
    assert [answer.content for answer in short.batch([ASKED, ASKED])] == [whole.content] * 2


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_structured_output(chain, method):
    assert isinstance(chain.with_structured_output(Pet, method=method).invoke(ASKED), Pet)


def test_langchain_tools(chain):
    messages = pytest.importorskip("langchain_core.messages")
    answer = chain.bind_tools([get_weather], tool_choice="any").invoke("The weather in Rome?")
    assert answer.tool_calls[0]["name"] == "get_weather"
    assert answer.tool_calls[0]["args"]["city"] in ("Paris", "Rome")
    results = [messages.ToolMessage("Sunny.", tool_call_id=call["id"]) for call in answer.tool_calls]
    history = [messages.HumanMessage("The weather in Rome?"), answer, *results]
    assert chain.bind_tools([get_weather]).bind(max_tokens=4).invoke(history)


# --- instructor


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor(url, mode):
    instructor, openai = pytest.importorskip("instructor"), pytest.importorskip("openai")
    with openai.OpenAI(base_url=url, api_key="none") as plain:
        client = instructor.from_openai(plain, mode=instructor.Mode[mode])
        pet = client.chat.completions.create(
            model="small",
            response_model=Pet,
            messages=[{"role": "user", "content": ASKED}],
            temperature=0,
            max_tokens=100,
            max_retries=0,
        )
    assert isinstance(pet, Pet)


# --- pydantic-ai


@pytest.fixture(scope="module")
def agent(url):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def make(**options):
        model = OpenAIChatModel("small", provider=OpenAIProvider(base_url=url, api_key="none"))
        settings = {"temperature": 0, "max_tokens": 100}
        return pydantic_ai.Agent(model, model_settings=settings, instructions="Be brief.", **options)

    return make


def test_pydantic_ai(agent):
    talker = agent(tools=[get_weather])
    first = talker.run_sync("Say hello.")
    assert first.output and first.usage.output_tokens > 0
    assert talker.run_sync("And again.", message_history=first.all_messages()).output

    async def stream():
        async with agent().run_stream("Say hello.") as result:
            return [text async for text in result.stream_text(delta=True)]

    assert "".join(asyncio.run(stream()))


def test_pydantic_ai_output(agent):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    assert isinstance(agent(output_type=Pet).run_sync(ASKED).output, Pet)
    assert isinstance(agent(output_type=pydantic_ai.NativeOutput(Pet)).run_sync(ASKED).output, Pet)
