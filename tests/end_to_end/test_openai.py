"""The `openai` Python package against `quire serve`: what its callers do, with the default model behind it."""

import asyncio
import base64
import enum
import json
import math
import struct

import pytest
from program import MODEL, needs_model
from served import serve

openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")

pytestmark = needs_model

HELLO = [{"role": "user", "content": "Say hello."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "description": "What time it is."}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("serve"), "--served-model-name", "small,also-small") as running:
        yield running


def options_of(server):
    return {"base_url": f"http://127.0.0.1:{server.port}/v1", "api_key": "none", "max_retries": 0, "timeout": 120}


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(**options_of(server)) as opened:
        yield opened


def chat(client, messages=HELLO, **options):
    options = {"model": "small", "temperature": 0, "max_tokens": 24, **options}
    return client.chat.completions.create(messages=messages, **options)


def streamed_text(chunks):
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


# --- chat


def test_chat(client):
    answer = chat(client)
    assert answer.object == "chat.completion" and answer.model == "small"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0


def test_names_of_the_model(client):
    assert [model.id for model in client.models.list()] == ["small", "also-small"]
    assert client.models.retrieve("small").id == "small"
    for name in ("small", "default", MODEL, "gpt-4o"):
        assert chat(client, model=name, max_tokens=1).model == "small"
    assert chat(client, model="also-small", max_tokens=1).model == "also-small"
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("gpt-4o")
    assert error.value.code == "model_not_found" and error.value.param == "model"


def test_a_stream_is_the_same_text(client):
    chunks = list(chat(client, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert streamed_text(chunks) == chat(client).choices[0].message.content
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_in_a_stream(client):
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_streams_of_the_package(client):
    with client.chat.completions.stream(model="small", messages=HELLO, temperature=0, stop=".") as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == chat(client, stop=".", max_tokens=200).choices[0].message.content


def test_async(server):
    async def ask():
        async with openai.AsyncOpenAI(**options_of(server)) as client:
            whole, stream = await asyncio.gather(
                client.chat.completions.create(model="small", messages=HELLO, temperature=0, max_tokens=24),
                client.chat.completions.create(
                    model="small", messages=HELLO, temperature=0, max_tokens=24, stream=True
                ),
            )
            return whole.choices[0].message.content, streamed_text([chunk async for chunk in stream])

    whole, stream = asyncio.run(ask())
    assert whole == stream


def test_choices_and_seeds(client):
    options = {"n": 3, "temperature": 1, "seed": 11}
    first, second = (chat(client, **options) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts == [choice.message.content for choice in second.choices]
    chunks = list(chat(client, stream=True, **options))
    for index in range(3):
        parts = (c.delta.content or "" for chunk in chunks for c in chunk.choices if c.index == index)
        assert "".join(parts) == texts[index]


def test_stop(client):
    text = chat(client).choices[0].message.content
    stop = text[5:8]
    for given in (stop, [stop, "never"]):
        answer = chat(client, stop=given).choices[0]
        assert answer.message.content == text[: text.index(stop)]
        assert answer.finish_reason == "stop"


def test_max_tokens(client):
    for options in ({"max_tokens": 3}, {"max_tokens": None, "max_completion_tokens": 3}):
        answer = chat(client, **options)
        assert answer.usage.completion_tokens == 3 and answer.choices[0].finish_reason == "length"


def test_logprobs(client):
    answer = chat(client, logprobs=True, top_logprobs=3, max_tokens=6)
    entries = answer.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == answer.choices[0].message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token and entry.logprob <= 0
    chunks = chat(client, logprobs=True, max_tokens=6, stream=True)
    streamed = [e for chunk in chunks for c in chunk.choices if c.logprobs for e in c.logprobs.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]


def test_logit_bias(client, server):
    plain = chat(client, logprobs=True, max_tokens=1)
    token = tokens_of(server, plain.choices[0].message.content)[-1]
    biased = chat(client, logit_bias={str(token): -100}, max_tokens=1)
    assert biased.choices[0].message.content != plain.choices[0].message.content


def tokens_of(server, text):
    return server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]


def test_a_cached_prefix(client):
    messages = [{"role": "system", "content": "Count. " * 60}, *HELLO]
    chat(client, messages, max_tokens=1)
    assert chat(client, messages, max_tokens=1).usage.prompt_tokens_details.cached_tokens >= 64


def test_conversations_with_parts_and_roles(client):
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "Hi."}, {"type": "text", "text": "Who are you?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call("call_1", "get_time", "{}")]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    ]
    assert chat(client, messages).choices[0].message.content


def call(name, function, arguments):
    return {"id": name, "type": "function", "function": {"name": function, "arguments": arguments}}


def test_special_tokens_of_users_stay_text(client):
    """The template's turn takes the same number of tokens; the text's own spelling takes several."""
    plain = chat(client, [{"role": "user", "content": "x"}], max_tokens=1).usage.prompt_tokens
    spelled = chat(client, [{"role": "user", "content": "x<|im_end|>"}], max_tokens=1).usage.prompt_tokens
    assert spelled > plain + 2


def test_the_last_message_is_continued(client):
    messages = [*HELLO, {"role": "assistant", "content": "Hello, my name"}]
    answer = chat(client, messages, extra_body={"continue_final_message": True}, max_tokens=4)
    raw = client.completions.create(
        model="small",
        temperature=0,
        max_tokens=4,
        prompt=rendered(client, HELLO) + "Hello, my name",
    )
    assert answer.choices[0].message.content == raw.choices[0].text


def rendered(client, messages):
    """The default model's template, written out."""
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return system + turns + "<|im_start|>assistant\n"


# --- tools


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call(client, stream):
    calls = calls_of(chat(client, tools=[WEATHER, TIME], tool_choice="required", max_tokens=300, stream=stream), stream)
    assert calls
    for name, arguments in calls:
        assert name in ("get_weather", "get_time")
        arguments = json.loads(arguments)
        if name == "get_weather":
            assert arguments["city"] in ("Paris", "Rome") and isinstance(arguments["days"], int)


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_call(client, stream):
    choice = {"type": "function", "function": {"name": "get_weather"}}
    answer = chat(client, tools=[WEATHER, TIME], tool_choice=choice, max_tokens=100, stream=stream)
    [(name, arguments)] = calls_of(answer, stream)
    assert name == "get_weather"
    assert set(json.loads(arguments)) == {"city", "days"}


def calls_of(answer, stream):
    """(name, arguments) of each call; the ids differ, and the indexes of a stream count up."""
    if not stream:
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert len({call.id for call in choice.message.tool_calls}) == len(choice.message.tool_calls)
        return [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    calls, reasons = [], []
    for chunk in answer:
        choice = chunk.choices[0]
        reasons.append(choice.finish_reason)
        for delta in choice.delta.tool_calls or []:
            if delta.id:
                assert delta.index == len(calls)
                calls.append([delta.function.name, ""])
            calls[delta.index][1] += delta.function.arguments
    assert reasons[-1] == "tool_calls" and set(reasons[:-1]) == {None}
    return [tuple(call) for call in calls]


def calls_before():
    """A conversation that even a very small model goes on with by another call."""
    for number, city in enumerate(["Rome", "Paris", "Rome", "Paris"]):
        yield {"role": "user", "content": f"The weather in {city} tomorrow?"}
        name, arguments = f"call_{number}", json.dumps({"city": city, "days": 1})
        yield {"role": "assistant", "content": None, "tool_calls": [call(name, "get_weather", arguments)]}
        yield {"role": "tool", "tool_call_id": name, "content": "Sunny."}
    yield {"role": "user", "content": "The weather in Rome tomorrow?"}


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_the_models_own_accord(client, stream):
    answer = chat(client, list(calls_before()), tools=[WEATHER], max_tokens=60, stream=stream)
    [(name, arguments), *_] = calls_of(answer, stream)
    assert name == "get_weather" and json.loads(arguments)["city"] == "Rome"


def test_tools_that_must_not_be_called(client):
    answer = chat(client, list(calls_before()), tools=[WEATHER], tool_choice="none", max_tokens=60)
    assert answer.choices[0].message.tool_calls is None and answer.choices[0].message.content
    shown, hidden = (chat(client, tools=[WEATHER], tool_choice=choice, max_tokens=1) for choice in ("auto", "none"))
    assert shown.usage.prompt_tokens > hidden.usage.prompt_tokens


# --- reasoning

THINKING = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
{{ '<think>\\n' }}"""


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A template that begins the reasoning, as those of models that think do."""
    folder = tmp_path_factory.mktemp("thinker")
    (folder / "template.jinja").write_text(THINKING)
    options = ("--served-model-name", "small", "--chat-template", folder / "template.jinja")
    with serve(folder, *options) as running, openai.OpenAI(**options_of(running)) as opened:
        yield opened


def thoughts_before():
    """A conversation that even a very small model goes on with in the same way."""
    for name in ("Ann", "Bob", "Cid", "Dan"):
        yield {"role": "user", "content": f"Greet {name}."}
        yield {"role": "assistant", "reasoning_content": f"I greet {name}.", "content": f"Hello, {name}!"}
    yield {"role": "user", "content": "Greet Eve."}


def test_reasoning_is_told_apart(thinker):
    answer = chat(thinker, list(thoughts_before()), max_tokens=30)
    message = answer.choices[0].message
    assert message.reasoning_content == "I greet Eve." and message.content == "Hello, Eve!"
    chunks = chat(thinker, list(thoughts_before()), max_tokens=30, stream=True)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(getattr(delta, "reasoning_content", "") or "" for delta in deltas) == "I greet Eve."
    assert "".join(delta.content or "" for delta in deltas) == "Hello, Eve!"
    together = chat(thinker, list(thoughts_before()), max_tokens=30, extra_body={"separate_reasoning": False})
    assert together.choices[0].message.content == "I greet Eve.\n</think>\n\nHello, Eve!"


def test_a_constrained_answer_has_no_reasoning(thinker):
    message = chat(thinker, extra_body={"regex": "[0-9]{4}"}).choices[0].message
    assert message.content.isdigit() and not hasattr(message, "reasoning_content")


# --- structured outputs


class Kind(str, enum.Enum):
    cat = "cat"
    dog = "dog"


class Pet(pydantic.BaseModel):
    kind: Kind
    legs: int = pydantic.Field(ge=0, le=8)


class Person(pydantic.BaseModel):
    """Bounded everywhere: very small models do not know when to end a string or a list."""

    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=150)
    pets: list[Pet] = pydantic.Field(max_length=2)
    home: Pet | None


def test_parsed_answers(client):
    answer = client.chat.completions.parse(
        model="small",
        messages=[{"role": "user", "content": "Describe Ada, 36."}],
        response_format=Person,
        temperature=0,
        max_tokens=400,
    )
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_parsed_calls(client):
    answer = client.chat.completions.parse(
        model="small",
        messages=[{"role": "user", "content": "Save Ada, 36."}],
        tools=[openai.pydantic_function_tool(Person, name="save")],
        tool_choice={"type": "function", "function": {"name": "save"}},
        temperature=0,
        max_tokens=400,
    )
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Person)


def test_json_objects_regexes_and_rules(client):
    answer = chat(client, response_format={"type": "json_object"}, max_tokens=200)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    assert answer.choices[0].message.content.lstrip().startswith("{")
    digits = chat(client, extra_body={"regex": "[0-9]{3}-[0-9]{2}"}).choices[0].message.content
    assert len(digits) == 6 and digits[3] == "-"
    word = chat(client, extra_body={"ebnf": 'root ::= "yes" | "no"'}).choices[0].message.content
    assert word in ("yes", "no")


def test_what_schemas_do_not_enforce_is_refused_if_strict_and_else_named(client):
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}, "enum": [1]}}, "required": ["a"]}
    named = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, response_format=named)
    assert error.value.param == "response_format" and '"not"' in str(error.value)
    named["json_schema"]["strict"] = False
    raw = chat(client.with_raw_response, response_format=named)
    assert raw.headers["x-quire-ignored"] == "response_format#/properties/a/not"
    assert json.loads(raw.parse().choices[0].message.content) == {"a": 1}


# --- completions


def complete(client, prompt, **options):
    options = {"model": "small", "temperature": 0, "max_tokens": 8, **options}
    return client.completions.create(prompt=prompt, **options)


def test_completions(client):
    text = complete(client, "Once upon a time").choices[0].text
    stream = complete(client, "Once upon a time", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == text
    several = complete(client, ["Once upon a time", "The sky is"], n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == several.choices[1].text == text
    unlimited = {"max_tokens": None, "extra_body": {"regex": "[a-z ]{60}"}}
    assert len(complete(client, "Once upon a time", **unlimited).choices[0].text) == 60


def test_prompts_of_tokens(client, server):
    ids = tokens_of(server, "Once upon a time")
    text = complete(client, "Once upon a time").choices[0].text
    assert complete(client, ids).choices[0].text == text
    assert [choice.text for choice in complete(client, [ids, ids]).choices] == [text, text]


def test_echo_with_logprobs(client):
    prompt = "The capital of France is"
    answer = complete(client, prompt, echo=True, logprobs=2, max_tokens=3).choices[0]
    assert answer.text.startswith(prompt)
    logprobs = answer.logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs)
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    for token, offset in zip(logprobs.tokens, logprobs.text_offset):
        assert answer.text[offset:].startswith(token)
    only = complete(client, prompt, echo=True, logprobs=2, max_tokens=0).choices[0]
    assert only.text == prompt
    assert only.logprobs.token_logprobs == logprobs.token_logprobs[: len(only.logprobs.tokens)]


# --- embeddings


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b))


def test_embeddings(client):
    texts = ["a cat on a mat", "a kitten on a rug", "interest rates rose sharply"]
    answer = client.embeddings.create(model="small", input=texts, extra_body={"pooling": "mean"})
    vectors = [entry.embedding for entry in answer.data]
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    assert all(math.isclose(cosine(vector, vector), 1, rel_tol=1e-3) for vector in vectors)
    assert cosine(vectors[0], vectors[1]) > cosine(vectors[0], vectors[2])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0


def test_embeddings_as_bytes_and_as_numbers(client, server):
    numbers = client.embeddings.create(model="small", input="hello", encoding_format="float").data[0].embedding
    raw = client.embeddings.create(model="small", input="hello", encoding_format="base64").data[0].embedding
    values = struct.unpack(f"<{len(numbers)}f", base64.b64decode(raw))
    assert all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in zip(values, numbers))
    ids = tokens_of(server, "hello")
    assert client.embeddings.create(model="small", input=ids).data[0].embedding == pytest.approx(numbers)


# --- errors


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"n": 0}, "n"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
        ({"extra_body": {"lora_path": "x"}}, "lora_path"),
        ({"extra_body": {"return_hidden_states": True}}, "return_hidden_states"),
        ({"messages": []}, "messages"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png,"}}]}
                ]
            },
            "messages[0].content[0]",
        ),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
    ],
)
def test_errors_name_the_parameter(client, options, param):
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, **options)
    assert error.value.param == param
    assert error.value.type == "invalid_request_error"


def test_what_has_no_effect_is_named(client, server, tmp_path):
    """In a header, in the log, and with --strict-fields in a 400."""
    extra = {"store": True, "extra_body": {"keep_alive": "5m", "x\r\ny": 1, "none": None}, "max_tokens": 1}
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hi.", "cache_control": {"type": "ephemeral"}}]}]
    names = "messages[].content[].cache_control, store, keep_alive, x??y"
    raw = chat(client.with_raw_response, messages, **extra)
    assert sorted(raw.headers["x-quire-ignored"].split(", ")) == sorted(names.split(", "))
    with client.chat.completions.with_streaming_response.create(
        model="small", messages=messages, stream=True, **extra
    ) as streamed:
        assert streamed.headers["x-quire-ignored"] == raw.headers["x-quire-ignored"]
    assert "x-quire-ignored" not in chat(client.with_raw_response, max_tokens=1).headers
    server.wait_until(lambda: server.log.read_text().count(", ignored " + raw.headers["x-quire-ignored"]) == 2)
    with serve(tmp_path, "--strict-fields") as strict, openai.OpenAI(**options_of(strict)) as careful:
        with pytest.raises(openai.BadRequestError) as error:
            chat(careful, model="default", extra_body={"keep_alive": "5m"})
        assert error.value.param == "keep_alive"


def test_others_names(client):
    """vLLM's and llama.cpp's."""
    assert chat(client, extra_body={"guided_choice": ["yes", "no"]}).choices[0].message.content in ("yes", "no")
    three = chat(client, extra_body={"structured_outputs": {"regex": "[0-9]{3}"}}).choices[0].message.content
    assert len(three) == 3 and three.isdigit()
    assert chat(client, extra_body={"grammar": 'root ::= "maybe"'}).choices[0].message.content == "maybe"
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, extra_body={"grammar": "root ::= <token>"})
    assert error.value.param == "grammar"
    kept = chat(client, stop="e", extra_body={"include_stop_str_in_output": True}).choices[0].message.content
    assert kept.endswith("e")


def test_a_prompt_that_is_too_long(client):
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, [{"role": "user", "content": "word " * 20000}])
    assert error.value.code == "context_length_exceeded"


def test_a_client_that_leaves(client, server):
    """What it asked for is given up."""
    with chat(client, max_tokens=2000, stream=True, n=4, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    server.wait_until(lambda: sum(worker["num_reqs"] for worker in server.get("/get_load").json()) == 0, 10)
