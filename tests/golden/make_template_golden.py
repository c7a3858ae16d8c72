"""Writes chat_templates.json: what Jinja2, set up as transformers sets it up for chat templates, makes of our
conversations with the templates of many models.

    python make_template_golden.py TEMPLATES_FOLDER MODEL.gguf

TEMPLATES_FOLDER holds NAME.jinja files (models/templates of the llama-cpp-python source package); the template of
MODEL.gguf is recorded as "default model". The templates themselves are not recorded, only the SHA-256 of each, so that
a test can tell another version of a template from a wrong answer. Needs transformers, jinja2 and gguf.

For each template and conversation the file has the SHA-256 of the output, or "error" when rendering fails; for a few,
the output itself, so that a difference can be read.
"""

import datetime
import hashlib
import json
import pathlib
import sys

from gguf import GGUFReader
from transformers.utils import chat_template_utils

NOW = datetime.datetime(2025, 7, 4, 9, 8, 7)
READABLE_CONVERSATIONS = ("system and turns", "tool calls", "parts")
READABLE_TEMPLATES = (
    "default model",
    "Qwen-Qwen3-0.6B",
    "meta-llama-Llama-3.1-8B-Instruct",
    "deepseek-ai-DeepSeek-V3.1",
    "google-gemma-2-2b-it",
    "openai-gpt-oss-120b",
)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place, with \"quotes\", <tags> & an apostrophe's trap.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "City, e.g. Zürich or 東京"},
                "days": {"type": "integer", "minimum": 1, "maximum": 14, "default": 3},
                "scale": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "limits": {
                    "type": "object",
                    "properties": {
                        "wind": {"type": "number", "exclusiveMaximum": 99.5, "description": "in m/s"},
                        "tags": {"type": "array", "items": {"type": ["string", "null"]}},
                    },
                    "required": ["wind"],
                    "additionalProperties": False,
                },
            },
            "required": ["place"],
        },
        "return": {"type": "object", "description": "what was found"},
    },
}
NOTE = {
    "type": "function",
    "function": {
        "name": "take_note",
        "description": "Keeps a line.\nNothing more.",
        "parameters": {"type": "object", "properties": {"line": {"type": "string"}}, "required": ["line"]},
    },
}
PING = {
    "type": "function",
    "function": {"name": "ping", "description": "", "parameters": {"type": "object", "properties": {}}},
}
TOOLS = [WEATHER, NOTE]
# What only one model's template reads.
OWN_NAMES = {"functions": json.dumps([tool["function"] for tool in TOOLS]), "datetime": "2025-07-04 09:08:07"}


def call(name, arguments, identity="abc123def"):
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


SYSTEM = turn("system", "You answer in short sentences.")
HELLO = turn("user", "Hello, who are you?")
ANSWER = turn("assistant", "  A small model.\n")
AGAIN = turn("user", "And what is 2 + 2?\n")
DAYS = {"place": "Zürich", "days": 2, "limits": {"wind": 10.0, "tags": ["a", None]}}

# A conversation is the context that a template is rendered with, less what COMMON has.
COMMON = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
CONVERSATIONS = {
    "one question": {"messages": [HELLO], "add_generation_prompt": True},
    "system and turns": {"messages": [SYSTEM, HELLO, ANSWER, AGAIN], "add_generation_prompt": True, **OWN_NAMES},
    "without generation prompt": {"messages": [SYSTEM, HELLO, ANSWER], "add_generation_prompt": False},
    "no options at all": {"messages": [HELLO, ANSWER]},
    "tools not used": {
        "messages": [HELLO],
        "tools": TOOLS,
        **OWN_NAMES,
        "add_generation_prompt": True,
    },
    "tools and system": {
        "messages": [SYSTEM, HELLO],
        "tools": [PING, WEATHER],
        "documents": None,
        "add_generation_prompt": True,
    },
    "tool calls": {
        "messages": [
            SYSTEM,
            turn("user", "Weather in Zürich?"),
            turn("assistant", "", tool_calls=[call("get_weather", DAYS)]),
            turn("tool", "{\"sky\": \"clear\", \"t\": 21.5}", name="get_weather", tool_call_id="abc123def"),
            turn("assistant", "Clear, 21.5 degrees."),
            turn("user", "Note that."),
        ],
        "tools": TOOLS,
        "add_generation_prompt": True,
    },
    "arguments as text": {
        "messages": [
            turn("user", "Weather?"),
            turn("assistant", None, tool_calls=[call("get_weather", "{\"place\": \"Oslo\", \"days\": 1}")]),
            turn("tool", "rain", tool_call_id="abc123def"),
        ],
        "tools": TOOLS,
        "add_generation_prompt": True,
    },
    "two calls at once": {
        "messages": [
            turn("user", "Weather in two places?"),
            turn(
                "assistant",
                "Looking.",
                reasoning_content="Two calls.",
                tool_calls=[call("get_weather", {"place": "Oslo"}, "call00001"), call("ping", {}, "call00002")],
            ),
            turn("tool", "rain", name="get_weather", tool_call_id="call00001"),
            turn("tool", "pong", name="ping", tool_call_id="call00002"),
            turn("assistant", "Rain, and it lives."),
        ],
        "tools": [WEATHER, PING],
        "add_generation_prompt": False,
    },
    "thinking on": {
        "messages": [SYSTEM, HELLO, turn("assistant", "<think>\nWho am I?\n</think>\n\nA model."), AGAIN],
        "add_generation_prompt": True,
        "enable_thinking": True,
        "thinking": True,
        "reasoning_effort": "high",
    },
    "thinking off": {
        "messages": [HELLO, turn("assistant", "A model.", reasoning_content="Who am I?"), AGAIN],
        "add_generation_prompt": True,
        "enable_thinking": False,
        "thinking": False,
        "reasoning_effort": "low",
    },
    "unicode and quotes": {
        "messages": [
            turn("system", "Señor \"Ω\" said: it's {{ not }} a {% template %} {# at all #}\\n"),
            turn("user", "naïve 日本語 🏳️‍🌈 ‘quotes’ \u00a0\u2003 <b>&amp;</b>\r\n\ttab"),
            turn("assistant", "ÀÉÎ ß ÿ — «ça va»"),
            turn("user", "<|im_end|></s><|eot_id|>"),
        ],
        "add_generation_prompt": True,
    },
    "empty content": {
        "messages": [turn("system", ""), turn("user", ""), turn("assistant", ""), turn("user", "   ")],
        "add_generation_prompt": True,
    },
    "parts": {
        "messages": [
            turn("system", [{"type": "text", "text": "Be brief."}]),
            turn("user", [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "what?"}]),
            turn("assistant", [{"type": "text", "text": "A cat."}]),
            turn("user", [{"type": "text", "text": "Sure?"}]),
        ],
        "add_generation_prompt": True,
    },
    "content none": {"messages": [HELLO, turn("assistant", None), AGAIN], "tools": None, "add_generation_prompt": True},
    "roles out of order": {
        "messages": [turn("assistant", "I begin."), HELLO, HELLO, turn("developer", "Be kind."), turn("critic", "Hm.")],
        "add_generation_prompt": True,
    },
    "no messages": {"messages": [], "add_generation_prompt": True},
    "documents": {
        "messages": [SYSTEM, turn("user", "What do they say?")],
        "documents": [
            {"title": "One", "text": "First \"text\"."},
            {"title": "Two", "text": "Second\ntext.", "page": 2},
        ],
        "add_generation_prompt": True,
    },
    "long": {
        "messages": [SYSTEM] + [turn("user" if i % 2 == 0 else "assistant", f"Message {i}.") for i in range(41)],
        "add_generation_prompt": True,
        "enable_thinking": True,
    },
}


def default_template(path):
    reader = GGUFReader(path)
    return bytes(reader.fields["tokenizer.chat_template"].parts[-1]).decode()


def render(source, conversation):
    """The output, or None when rendering fails."""
    try:
        template = chat_template_utils._compile_jinja_template(source)
        template.environment.globals["strftime_now"] = NOW.strftime
        return template.render(**json.loads(json.dumps({**COMMON, **conversation})))
    except Exception:
        return None


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def main(folder, model):
    sources = {path.stem: path.read_text(encoding="utf-8") for path in sorted(pathlib.Path(folder).glob("*.jinja"))}
    sources["default model"] = default_template(model)
    golden = {"now": NOW.isoformat(), "common": COMMON, "conversations": CONVERSATIONS, "templates": {}, "readable": {}}
    for name, source in sources.items():
        outputs = {title: render(source, conversation) for title, conversation in CONVERSATIONS.items()}
        hashes = ["error" if text is None else sha256(text) for text in outputs.values()]
        golden["templates"][name] = {"sha256": sha256(source), "outputs": hashes}  # in the conversations' order
        if name in READABLE_TEMPLATES:
            texts = {title: outputs[title] for title in READABLE_CONVERSATIONS}
            golden["readable"][name] = {title: text for title, text in texts.items() if text is not None}
    path = pathlib.Path(__file__).with_name("chat_templates.json")
    path.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
