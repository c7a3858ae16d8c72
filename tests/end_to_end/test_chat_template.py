"""`quire template` against Jinja2: many models' templates, each with many conversations.

What Jinja2 answers is recorded by tests/golden/make_template_golden.py; the templates themselves come from another
project's package and from the model under test.
"""

import hashlib
import json
import subprocess

import pytest

from program import MODEL, QUIRE, ROOT, needs_model, one_line, quire, usage_error

GOLDEN = json.loads((ROOT / "tests" / "golden" / "chat_templates.json").read_text(encoding="utf-8"))
DEFAULT = "default model"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def render(source, context):
    """The rendered bytes, or "error"."""
    command = [QUIRE, "template", *source, "--context", "-", "--now", GOLDEN["now"]]
    done = subprocess.run(command, input=json.dumps(context).encode(), capture_output=True, timeout=60)
    if done.returncode == 0:
        assert done.stderr == b""
        return done.stdout
    assert done.returncode == 2 and done.stdout == b""
    assert one_line(done.stderr.decode()).startswith("quire template: chat template, line ")
    return "error"


def check_all_conversations(name, source):
    readable = GOLDEN["readable"].get(name, {})
    different = []
    conversations = GOLDEN["conversations"].items()
    for (title, conversation), expected in zip(conversations, GOLDEN["templates"][name]["outputs"], strict=True):
        found = render(source, {**GOLDEN["common"], **conversation})
        if title in readable:
            assert found != "error" and found.decode() == readable[title], title
        if (found if found == "error" else sha256(found)) != expected:
            different.append(title)
    assert different == []


@pytest.mark.parametrize("name", [name for name in GOLDEN["templates"] if name != DEFAULT])
def test_template_of(name, peer_files):
    path = peer_files / "templates" / f"{name}.jinja"
    assert sha256(path.read_bytes()) == GOLDEN["templates"][name]["sha256"], "this is another version of the template"
    check_all_conversations(name, ["--chat-template", path])


@needs_model
def test_template_of_the_default_model():
    check_all_conversations(DEFAULT, ["--model", MODEL])


def test_most_answers_are_texts():
    outputs = [output for template in GOLDEN["templates"].values() for output in template["outputs"]]
    assert len(outputs) > 1300 and sum(output != "error" for output in outputs) > 1100


def test_bad_input_is_one_line(tmp_path):
    (tmp_path / "t").write_text("line one\n{{ messages | nosuch }}")
    (tmp_path / "c").write_text("{}")

    def refused(*arguments, code=2):
        done = quire("template", *arguments)
        assert done.returncode == code and done.stdout == ""
        return done.stderr

    template, context = ["--chat-template", tmp_path / "t"], ["--context", tmp_path / "c"]
    assert one_line(refused(*template, *context)) == "quire template: chat template, line 2: unknown filter 'nosuch'"
    assert "cannot be read: No such file" in one_line(refused("--chat-template", tmp_path / "no", *context))
    (tmp_path / "t").write_text("x")
    assert "it is a folder" in one_line(refused(*template, tmp_path))
    (tmp_path / "c").write_text("[1, 2")
    assert one_line(refused(*template, *context)).startswith("quire template: not JSON: parse error at line 1")
    (tmp_path / "c").write_text("7")
    assert one_line(refused(*template, *context)).endswith("the context: it must be an object")
    (tmp_path / "c").write_text("{}")
    assert "--now" in one_line(refused(*template, *context, "--now", "yesterday"))
    assert "do not go together" in usage_error(quire("template", *template, "--model", "m"))


@needs_model
def test_messages_alone_are_a_conversation_to_be_answered():
    messages = [{"role": "user", "content": "Hi"}]
    context = {"messages": messages, "add_generation_prompt": True, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    whole = quire("template", "--model", MODEL, "--context", "-", text=json.dumps(context), QUIRE_MODEL=None)
    plain = quire("template", text=json.dumps(messages))  # of the model that the environment names
    assert plain.stdout == whole.stdout and plain.stdout.endswith("user\nHi<|im_end|>\n<|im_start|>assistant\n")
