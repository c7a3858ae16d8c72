"""Drafts: what is used where nobody asks, what may be asked for, and what is told of it."""

import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import pytest
from program import MODEL, QUIRE, ROOT, environment, needs_model, one_line, quire
from served import serve

sys.path.insert(0, str(ROOT / "tests" / "golden"))
import torch_file  # noqa: E402

pytestmark = needs_model
# On a CPU, and one thread of it: cores that others use make threads wait for each other.
CPU = ["--device", "cpu", "--threads", 1]
FRANCE = "The capital of France is"
NUMBERS = "one two three four five six seven eight nine ten. " * 4
LISTS = {"text": "The seven days of the week are Monday,", "sampling_params": {"temperature": 0, "max_new_tokens": 120}}


WIDTH, HEADS, KV_HEADS, DIM, FFN, DRAFT = 576, 9, 3, 64, 1536, 64
SHAPE = {"hidden_size": WIDTH, "intermediate_size": FFN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
         "head_dim": DIM, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "vocab_size": 49152, "draft_vocab_size": DRAFT}


def head_tensors():
    """Of a head for the default model that says nothing: all its numbers are 0, so all tokens are as likely."""
    shapes = {"fc.weight": [WIDTH, 3 * WIDTH], "norm.weight": [WIDTH], "lm_head.weight": [DRAFT, WIDTH]}
    shapes |= {f"midlayer.{name}.weight": [WIDTH]
               for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")}
    shapes |= {f"midlayer.self_attn.{name}_proj.weight": [count * DIM, 2 * WIDTH]
               for name, count in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))}
    shapes |= {"midlayer.self_attn.o_proj.weight": [WIDTH, HEADS * DIM], "midlayer.mlp.down_proj.weight": [WIDTH, FFN]}
    shapes |= {f"midlayer.mlp.{name}_proj.weight": [FFN, WIDTH] for name in ("gate", "up")}
    tensors = {name: ("BF16", shape, bytes(2 * math.prod(shape))) for name, shape in shapes.items()}
    return tensors | {"d2t": ("I64", [DRAFT], bytes(8 * DRAFT))}


def write_head(path, fingerprint):
    config = {"target_fingerprint": fingerprint, "feature_layers": [2, 15, 27], "alignment": "token", **SHAPE,
              "fc_norm": False, "norm_output": True}
    header = {"__metadata__": {"format": "quire-eagle-head", "version": "1", "config": json.dumps(config),
                               "types": "{}"}}
    data = b""
    for name, (dtype, shape, numbers) in head_tensors().items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return str(path)


def write_eagle_folder(folder, tensors):
    """As EAGLE publishes its heads."""
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
              "max_position_embeddings": 2048, "torch_dtype": "bfloat16", **SHAPE}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch_file.save(folder / "pytorch_model.bin", tensors)
    return str(folder)


def accept_length(done):
    found = re.search(r"; ([\d.]+) tokens a verification, \d+ % of drafts accepted$", done.stderr.strip())
    return float(found[1]) if found else None


@pytest.fixture(scope="module")
def plain():
    return quire("generate", NUMBERS, "--max-tokens", 60, *CPU, "--speculative-algorithm", "NONE")


@pytest.mark.parametrize("more", [[], *(["--speculative-algorithm", name] for name in ("NGRAM", "EAGLE3", "EAGLE"))])
def test_drafts_change_no_text_and_those_of_one_that_repeats_itself_are_accepted(plain, more):
    drafted = quire("generate", NUMBERS, "--max-tokens", 60, *CPU, *more)
    assert drafted.stdout == plain.stdout and accept_length(plain) is None
    assert accept_length(drafted) > 2


def test_a_head_alone_drafts_too():
    asked = ["generate", FRANCE, "--max-tokens", 60, *CPU]
    plain = quire(*asked, "--speculative-algorithm", "NONE")
    drafted = quire(*asked, "--disable-speculative-ngram")
    assert drafted.stdout == plain.stdout
    assert accept_length(drafted) > 1.2


def test_json_tells_what_came_of_drafts():
    found = json.loads(quire("generate", NUMBERS, "--max-tokens", 60, *CPU, "--json").stdout)["speculation"]
    assert found["spec_accept_length"] == pytest.approx(1 + found["spec_num_correct_drafts"] / found["spec_verify_ct"])
    assert found["spec_accept_rate"] == found["spec_num_correct_drafts"] / found["spec_num_proposed_drafts"]


def test_a_head_drafts_for_its_own_model_alone(tmp_path):
    path = tmp_path / "head.safetensors"
    asked = ["generate", FRANCE, "--max-tokens", 30, *CPU]
    eagle = [*asked, "--speculative-algorithm", "EAGLE3"]
    foreign = quire(*eagle, "--speculative-draft-model-path", write_head(path, "0" * 16))
    assert foreign.returncode != 0 and "is a head for another model" in one_line(foreign.stderr)
    own = re.search(r" is ([0-9a-f]{16})$", foreign.stderr.strip())[1]
    drafted = quire(*eagle, "--speculative-draft-model-path", write_head(path, own))
    assert drafted.returncode == 0, drafted.stderr
    assert drafted.stdout == quire(*asked, "--speculative-algorithm", "NONE").stdout
    trees = ["--speculative-eagle-topk", 4, "--speculative-num-steps", 3, "--speculative-num-draft-tokens", 12]
    branching = quire(*eagle, *trees, "--speculative-draft-model-path", path)
    assert branching.returncode == 0 and branching.stdout == drafted.stdout, branching.stderr
    trees[3] = 1
    too_small = quire(*eagle, *trees, "--speculative-draft-model-path", path)
    assert too_small.returncode == 2 and "1 steps (--speculative-num-steps) has 4 drafts" in too_small.stderr


def test_a_folder_of_eagles_is_a_head(tmp_path):
    tensors = head_tensors() | {"t2d": ("BOOL", [49152], bytes([1] * DRAFT) + bytes(49152 - DRAFT))}
    folder = write_eagle_folder(tmp_path / "head", tensors)
    asked = ["generate", FRANCE, "--max-tokens", 30, *CPU, "--speculative-algorithm"]
    drafted = quire(*asked, "EAGLE", "--speculative-draft-model-path", folder)
    assert drafted.returncode == 0, drafted.stderr
    assert drafted.stdout == quire(*asked, "NONE").stdout
    del tensors["norm.weight"]
    refused = quire(*asked, "EAGLE", "--speculative-draft-model-path", write_eagle_folder(tmp_path / "head", tensors))
    assert refused.returncode != 0
    assert one_line(refused.stderr).endswith(f"{folder}/pytorch_model.bin: the tensor norm.weight is missing")


NONE, NGRAM, EAGLE3 = (["--speculative-algorithm", name] for name in ("NONE", "NGRAM", "EAGLE3"))
REFUSED = [
    ([*EAGLE3, "--speculative-num-steps", 8], "lets a step verify 8"),
    ([*EAGLE3, "--speculative-num-draft-tokens", 4, "--speculative-num-steps", 4], "lets a step verify 4"),
    ([*EAGLE3, "--speculative-eagle-topk", 2, "--speculative-num-steps", 1], "has 2 drafts"),
    ([*EAGLE3, "--speculative-draft-model-path", ""], 'not ""'),
    ([*NGRAM, "--speculative-eagle-topk", 4], "go with --speculative-algorithm EAGLE3"),
    (["--speculative-num-steps", 3], "go with --speculative-algorithm EAGLE3"),
    ([*NGRAM, "--speculative-draft-model-path", "head"], "is for --speculative-algorithm EAGLE3"),
    (["--speculative-draft-model-path", "head"], "is for --speculative-algorithm EAGLE3"),
    (["--speculative-algorithm", "EAGLE2"], 'one of NONE, NGRAM, EAGLE3, EAGLE; not "EAGLE2"'),
    ([*NGRAM, "--disable-speculative-ngram"], "nothing to guess by"),
    ([*NONE, "--disable-speculative-ngram"], "nothing to guess by"),
    ([*NONE, "--speculative-num-draft-tokens", 16], "does not go with"),
]


@pytest.mark.parametrize("options, why", REFUSED)
def test_options_that_do_not_go_together_are_refused_before_anything_is_started(options, why):
    for command in (["generate", FRANCE], ["serve", "--port", 0]):
        refused = quire(*command, *CPU, *options)
        assert refused.returncode == 2 and why in refused.stderr
        assert "listening" not in refused.stderr and "loading" not in refused.stderr


def test_benchmarks_of_steps_have_no_drafts_unless_they_are_asked_for():
    refused = quire("bench", "throughput", "--speculative-num-draft-tokens", 4, *CPU)
    assert refused.returncode == 2 and "does not go with --speculative-algorithm NONE" in refused.stderr
    profile = quire("bench", "profile", "--depth", 64, "--steps", 8, *CPU).stdout
    assert re.search(r"Rope.*\b30 calls", profile), profile


def installed(folder, *heads):
    """The program in a place of its own, with these heads' files beside it."""
    (folder / "bin").mkdir()
    (folder / "share/quire/heads").mkdir(parents=True)
    shutil.copy(QUIRE, folder / "bin/quire")
    for head in heads:
        os.link(head, folder / "share/quire/heads" / head.name)

    def run(*arguments, user=None):
        command = [str(folder / "bin/quire"), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment(), user=user)

    return run


@pytest.mark.skipif(os.getuid() != 0, reason="not root, who alone may be somebody else")
def test_a_folder_of_heads_that_may_not_be_read_is_none(plain):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        head = folder / "head.safetensors"
        write_head(head, "0" * 16)
        run = installed(folder, head)
        (folder / "share/quire/heads").chmod(0o744)  # whose names can be read, and not what lies behind them
        shutil.copy(MODEL, folder / "model.gguf")
        done = run("generate", NUMBERS, "--model", folder / "model.gguf", "--max-tokens", 60, *CPU, user=65534)
    assert done.returncode == 0 and done.stdout == plain.stdout, done.stderr


def test_a_head_of_another_model_is_refused_where_it_is_asked_for_and_else_not_used(plain, tmp_path):
    foreign = tmp_path / "foreign.safetensors"
    write_head(foreign, "0" * 16)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no head at all")
    run = installed(tmp_path, foreign, broken)
    quietly = run("generate", NUMBERS, "--max-tokens", 60, *CPU)
    assert quietly.stdout == plain.stdout and "head" not in quietly.stderr
    assert accept_length(quietly) > 2  # of its own text
    asked = run("generate", NUMBERS, "--max-tokens", 60, *CPU, "--speculative-algorithm", "EAGLE3")
    assert asked.returncode == 1 and asked.stdout == ""
    assert "there is no head for" in one_line(asked.stderr) and "--speculative-draft-model-path" in asked.stderr


# --- the server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("serve"), *CPU) as running:
        yield running


def algorithm(folder, *more):
    with serve(folder, *CPU, *more) as server:
        return server.get("/server_info").json()["speculative_algorithm"]


def test_the_server_says_which_drafts_it_makes(server, tmp_path):
    info = server.get("/server_info").json()
    assert (info["speculative_algorithm"], info["speculative_num_draft_tokens"]) == ("EAGLE3", 8)
    assert algorithm(tmp_path, "--speculative-algorithm", "NGRAM") == "NGRAM"
    assert algorithm(tmp_path, "--speculative-algorithm", "EAGLE") == "EAGLE3"
    assert algorithm(tmp_path, "--speculative-algorithm", "NONE") is None


def series(server, name):
    """By the drafter."""
    text = server.get("/metrics").text
    return {found[1]: float(found[2]) for found in re.finditer(rf'^{name}{{.*drafter="(\w+)".*}} (\S+)$', text, re.M)}


def value(server, name):
    return float(re.search(rf"^{name}{{[^}}]*}} (\S+)$", server.get("/metrics").text, re.MULTILINE)[1])


def test_what_came_of_drafts_is_told_by_the_call_and_by_the_metrics(server):
    before = series(server, "quire:spec_drafts_total")
    answer = server.post("/generate", LISTS).json()
    meta = answer["meta_info"]
    correct, proposed, rounds = (
        meta[name] for name in ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_verify_ct")
    )
    assert 0 < correct <= proposed and 0 < rounds < meta["completion_tokens"]
    assert meta["spec_accept_length"] == pytest.approx(1 + correct / rounds)
    assert meta["spec_accept_rate"] == pytest.approx(correct / proposed)
    histogram = meta["spec_correct_drafts_histogram"]
    assert sum(histogram) == rounds and sum(i * count for i, count in enumerate(histogram)) == correct
    drafts = lambda: sum(series(server, "quire:spec_drafts_total").values())  # noqa: E731
    server.wait_until(lambda: drafts() == sum(before.values()) + proposed, 5)  # an answer may be faster than its figures
    after = series(server, "quire:spec_drafts_total")
    assert after.keys() == {"NGRAM", "EAGLE3"} and after["EAGLE3"] > before["EAGLE3"]
    totals = {name: sum(series(server, f"quire:spec_{name}_total").values())
              for name in ("verifications", "drafts", "correct_drafts")}
    assert value(server, "sglang:spec_verify_calls_total") == totals["verifications"]
    assert value(server, "sglang:spec_accept_length") == pytest.approx(
        1 + totals["correct_drafts"] / totals["verifications"])
    assert value(server, "sglang:spec_accept_rate") == pytest.approx(totals["correct_drafts"] / totals["drafts"])
    state = server.get("/server_info").json()["internal_states"][0]
    assert state["avg_spec_accept_length"] == pytest.approx(value(server, "sglang:spec_accept_length"))


def test_a_short_answer_leaves_a_prompt_for_which_the_head_can_draft(tmp_path):
    prompt = "The planets of the solar system, in order, are Mercury, Venus, Earth, Mars, Jupiter, Saturn, " * 8
    body = lambda tokens: {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": tokens}}  # noqa: E731
    with serve(tmp_path, *CPU, "--speculative-algorithm", "EAGLE3", "--disable-speculative-ngram") as server:
        server.post("/generate", body(60))  # from which on prices are known
        server.post("/flush_cache", {})
        server.post("/generate", body(1))
        meta = server.post("/generate", body(60)).json()["meta_info"]
    assert meta["cached_tokens"] > 64 and meta["spec_verify_ct"] > 0


def test_a_call_may_leave_drafts_out(server):
    calls = value(server, "sglang:spec_verify_calls_total")
    drafted = server.post("/generate", LISTS).json()
    calls += drafted["meta_info"]["spec_verify_ct"]
    server.wait_until(lambda: value(server, "sglang:spec_verify_calls_total") == calls, 5)
    plain = server.post("/generate", LISTS | {"speculative": False}).json()
    assert plain["text"] == drafted["text"] and "spec_verify_ct" not in plain["meta_info"]
    body = {"model": "default", "messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 30}
    assert server.post("/v1/chat/completions", body | {"speculative": False}).status == 200
    assert value(server, "sglang:spec_verify_calls_total") == calls


def memory_of_tokens(*more):
    refused = quire("serve", "--port", 0, *CPU, "--max-total-tokens", 1 << 30, "--log-level", "error", *more)
    return re.search(r"tokens take ([\d.]+ TB)", refused.stderr)[1]


def test_a_heads_keys_and_values_count_as_memory():
    """Beside the default model's 23040 bytes a token: 768 of the head's one layer, and 144 for its part of a page."""
    assert memory_of_tokens("--speculative-algorithm", "NGRAM") == "24.7 TB"
    assert memory_of_tokens() == "25.7 TB"


def test_chat_tells_of_the_last_answer_and_of_all():
    asked = "Repeat: one two three, one two three, one two three, one two three.\n"
    done = quire("chat", *CPU, "--temperature", 0, "--max-tokens", 60, text=asked + asked + "/stats\n")
    last, all_answers = [line for line in done.stderr.splitlines() if "new tokens" in line][-2:]
    assert "last answer" in last and "2 answers" in all_answers
    for line in (last, all_answers):
        assert re.search(r"; [\d.]+ tokens a verification, \d+ % of drafts accepted$", line), line
