"""`quire generate` from the outside, with the default model."""

import json
import os
import signal
import subprocess

import pytest
from program import MODEL, QUIRE, environment, needs_model, one_line, quire

FRANCE = "The capital of France is"
SKY = "What color is the sky?"
STORY = "Once upon a time, in a small village by the sea,"


def generate(*arguments, **more):
    done = quire("generate", *arguments, **more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")
    return done.stdout[:-1]


def answer(*arguments, **more):
    return json.loads(generate("--json", *arguments, **more))


@pytest.fixture(scope="module")
def story():
    """What follows the beginning of the story, greedily, as JSON."""
    return answer(STORY, "--max-tokens", 48)


@needs_model
def test_knows_the_capital_of_france():
    assert "Paris" in generate(FRANCE, "--max-tokens", 8)


@needs_model
def test_statistics_go_to_standard_error():
    done = quire("generate", FRANCE, "--max-tokens", 4)
    line = one_line(done.stderr)
    assert line.startswith("quire: ") and "5 prompt tokens" in line and "4 new tokens" in line
    assert "tok/s" in line and "first token after" in line


@needs_model
def test_json_has_everything(story):
    assert story["finish_reason"] == "length"
    assert len(story["tokens"]) == 48 == story["usage"]["completion_tokens"]
    assert story["usage"]["prompt_tokens"] > 8 and story["usage"]["cached_tokens"] == 0
    assert 0 < story["timings"]["first_token_s"] < story["timings"]["total_s"]
    assert story["timings"]["prefill_tokens_per_s"] > 0 and story["timings"]["decode_tokens_per_s"] > 0
    assert "logprobs" not in story


@needs_model
@pytest.mark.parametrize(
    "more",
    [["--stream"], ["--no-stream"], ["--threads", "1"], ["--page-size", "1"], ["--speculative-algorithm", "NGRAM"]],
)
def test_the_text_does_not_depend_on_how_it_is_computed_and_shown(story, more):
    assert generate(STORY, "--max-tokens", 48, *more) == story["text"]


@needs_model
def test_the_prompt_may_come_from_a_file_or_a_pipe(story, tmp_path):
    (tmp_path / "prompt").write_text(STORY)
    assert generate("--file", tmp_path / "prompt", "--max-tokens", 48) == story["text"]
    assert generate("-", "--max-tokens", 48, text=STORY) == story["text"]


@needs_model
def test_a_stop_text_ends_the_text_before_itself(story):
    text = story["text"]
    stop = text[len(text) // 3 + 1 : len(text) // 3 + 12]  # begins and ends inside words, spans tokens
    stopped = answer(STORY, "--max-tokens", 48, "--stop", "never said", "--stop", stop)
    assert stopped["text"] == text[: text.index(stop)]
    assert stopped["finish_reason"] == "stop"
    assert len(stopped["tokens"]) < 48
    assert generate("--stop", stop, STORY, "--max-tokens", 48) == stopped["text"]


@needs_model
def test_an_answer_ends_by_itself():
    reply = answer("--chat", SKY, "--max-tokens", 100)
    assert "blue" in reply["text"] and "<|" not in reply["text"]
    assert reply["finish_reason"] == "stop"
    longer = answer("--chat", SKY, "--max-tokens", 100, "--ignore-eos")
    assert longer["finish_reason"] == "length" and len(longer["tokens"]) == 100
    assert longer["text"].startswith(reply["text"])


@needs_model
def test_a_system_message_changes_the_prompt():
    plain = answer("--chat", "Hi", "--max-tokens", 1)["usage"]["prompt_tokens"]
    with_system = answer("--chat", "--system", "word " * 100, "Hi", "--max-tokens", 1)["usage"]["prompt_tokens"]
    assert with_system > plain + 50


@needs_model
def test_a_seed_repeats_what_was_drawn():
    draw = ["--temperature", "1", "--max-tokens", "24", STORY]
    first = answer(*draw)
    assert answer(*draw, "--seed", first["seed"])["tokens"] == first["tokens"]
    assert answer(*draw, "--seed", first["seed"] ^ 1)["tokens"] != first["tokens"]


@needs_model
def test_logprobs_are_those_of_the_likeliest_tokens():
    reply = answer(FRANCE, "--max-tokens", 6, "--logprobs", 3)
    assert len(reply["logprobs"]) == 6
    for token, entry in zip(reply["tokens"], reply["logprobs"]):
        best = [top["logprob"] for top in entry["top"]]
        assert entry["id"] == token == entry["top"][0]["id"]
        assert entry["logprob"] == best[0] <= 0 and best == sorted(best, reverse=True) and len(best) == 3
    spelled = b"".join(bytes(entry["bytes"]) for entry in reply["logprobs"])
    assert spelled.decode() == reply["text"]


@needs_model
def test_a_bias_forbids_and_forces_tokens():
    token = answer(FRANCE, "--max-tokens", 1)["tokens"][0]
    other = answer(FRANCE, "--max-tokens", 1, "--logit-bias", f"{token}:-100")["tokens"][0]
    assert other != token
    assert answer("--logit-bias", f"{other}:100", FRANCE, "--max-tokens", 3)["tokens"] == [other] * 3


@needs_model
@pytest.mark.parametrize("kind", ["f16", "f32", "fp8"])
def test_every_type_of_kept_keys_and_values_works(kind):
    assert "Paris" in generate(FRANCE, "--max-tokens", 8, "--kv-cache-dtype", kind)


@needs_model
def test_ctrl_c_keeps_the_text_so_far():
    command = [QUIRE, "generate", STORY, "--ignore-eos", "--max-tokens", "8000", "--repetition-penalty", "1.2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    begun = os.read(process.stdout.fileno(), 1)
    process.send_signal(signal.SIGINT)
    rest, figures = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (begun + rest).decode()
    assert one_line(figures.decode()).startswith("quire: ")


@pytest.mark.parametrize(
    "arguments",
    [[], ["a", "b"], ["a", "--file", "b"], ["a", "--no-such-option"], ["a", "--kv-cache-dtype", "f64"], ["a", "--system", "b"]],
)
def test_bad_usage_exits_with_2(arguments):
    done = quire("generate", *arguments)
    assert done.returncode == 2 and done.stdout == "" and done.stderr != ""


def refusal(*arguments, **more):
    done = quire("generate", *arguments, **more)
    assert done.returncode == 1 and done.stdout == ""
    line = one_line(done.stderr)
    assert line.startswith("quire: ")
    return line


def test_without_any_model_it_says_what_to_do(tmp_path):
    line = refusal("hello", QUIRE_MODEL=None, QUIRE_CACHE=str(tmp_path))
    assert "--model" in line and "./run" in line


def test_a_file_that_is_not_there_is_named(tmp_path):
    assert "no-such-prompt" in refusal("--file", tmp_path / "no-such-prompt")


@needs_model
@pytest.mark.parametrize(
    "arguments, word",
    [
        (["a " * 400, "--context-length", "256"], "256"),
        (["a", "--temperature", "-1"], "temperature"),
        (["a", "--top-p", "0"], "top_p"),
        (["a", "--logit-bias", "seven:1"], "seven:1"),
        (["a", "--logit-bias", "99999999:1"], "99999999"),
        (["a", "--stop", ""], "stop"),
        (["", "--max-tokens", "1"], "empty"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(arguments, word):
    assert word in refusal(*arguments)


@needs_model
def test_the_model_may_be_named_in_three_ways(tmp_path):
    for more in ({}, {"QUIRE_MODEL": None, "QUIRE_CACHE": str(tmp_path)}):
        name = os.path.join(tmp_path, "SmolLM2-135M-Instruct.Q4_1.gguf")
        if not os.path.exists(name):
            os.symlink(MODEL, name)
        assert answer(FRANCE, "--max-tokens", 1, **more)["usage"]["prompt_tokens"] == 5
    assert answer(FRANCE, "--max-tokens", 1, "--model", MODEL, QUIRE_MODEL="/nowhere")["model"] == MODEL
