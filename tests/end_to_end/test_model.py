"""Models of every family against the logits that Hugging Face's transformers computes in float32.

The tiny models are written here, as folders and as GGUF files, by tests/golden/tiny_models.py; their goldens come from
tests/golden/make_model_golden.py. Measured differences, of logits that reach about 3:

    dense weights, keys and values in f32    up to 1.2e-5, every argmax equal (goldens are rounded to 1e-5)
    the same with keys and values in f16     up to 7e-3
                                  in bf16    up to 5e-2
    quantised weights                        up to 0.09 from exact activations: what 8-bit activations cost
                                             up to 6e-6 from activations rounded in the same way, except where a number
                                             lies so close between two integers that it rounds to the other one; its row
                                             and those that attend to it then differ by up to 0.03
                                             (OLMo 2 up to 1.4e-4: its norms after each half magnify what is small)

The default model (30 layers, Q4_1, logits around 15) is about 0.15 away from either golden on average over the ten
largest logits, 0.7 at most, and 121 to 125 of 129 argmaxes agree: with that many layers some number always rounds the
other way. Its weights turned into a dense F32 folder differ from transformers by 7e-5, with all argmaxes equal.
"""

import json
import pathlib
import sys

import pytest

from program import MODEL, ROOT, needs_model, one_line, quire, usage_error

GOLDEN = ROOT / "tests" / "golden"
sys.path.insert(0, str(GOLDEN))
import tiny_models  # noqa: E402

TINY = json.loads((GOLDEN / "tiny_logits.json").read_text())
SMOLLM2 = json.loads((GOLDEN / "smollm2_logits.json").read_text())
SHARE = 4  # goldens hold every fourth logit

DENSE = [name for name, spec in tiny_models.MODELS.items() if not spec.quantised]
QUANTISED = [name for name, spec in tiny_models.MODELS.items() if spec.quantised]


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Writes a model when it is first asked for: models("llama", "gguf")."""
    folder = tmp_path_factory.mktemp("models")

    def path(name, form):
        spec, target = tiny_models.MODELS[name], pathlib.Path(folder, f"{name}.{form}")
        if not target.exists():
            (tiny_models.write_gguf if form == "gguf" else tiny_models.write_folder)(spec, target)
        return target

    return path


def run(model, *options, ids=TINY["ids"], positions=(5, 17, 33, 47)):
    listed = [",".join(map(str, numbers)) for numbers in (ids, positions)]
    done = quire("inspect", "logits", model, "--ids", listed[0], "--positions", listed[1], "--json", *options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def differences(answer, golden):
    """The largest at each position."""
    return [
        max(abs(a - b) for a, b in zip(answer["logits"][position][::SHARE], logits, strict=True))
        for position, logits in golden["logits"].items()
    ]


def agreement(answer, golden):
    """The share of positions with the same likeliest token."""
    pairs = list(zip(answer["argmax"], golden["argmax"], strict=True))
    return sum(a == b for a, b in pairs) / len(pairs)


@pytest.mark.parametrize("form", ["folder", "gguf"])
@pytest.mark.parametrize("name", DENSE)
def test_dense_models_compute_what_transformers_does(models, name, form):
    golden = TINY["models"][name]
    answer = json.loads(run(models(name, form)))
    assert max(differences(answer, golden)) < 1e-4
    assert answer["argmax"] == golden["argmax"]


@pytest.mark.parametrize("name", DENSE)
def test_narrow_keys_and_values_cost_little(models, name):
    golden = TINY["models"][name]
    for type, tolerance in (("f16", 0.025), ("bf16", 0.15)):
        answer = json.loads(run(models(name, "gguf"), "--kv-cache-dtype", type))
        assert max(differences(answer, golden)) < tolerance
        assert agreement(answer, golden) > 0.9


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_models_compute_what_transformers_does_on_their_numbers(models, name):
    golden = TINY["models"][name]
    answer = json.loads(run(models(name, "gguf")))
    assert max(differences(answer, golden)) < 0.3
    assert agreement(answer, golden) > 0.85


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_models_differ_by_the_rounding_of_activations_alone(models, name):
    golden = TINY["models"][name]["with_8_bit_activations"]
    answer = json.loads(run(models(name, "gguf")))
    apart = sorted(differences(answer, golden))
    assert apart[1] < (3e-4 if name.startswith("olmo2") else 1e-4), "two of the four positions at least, before any number rounds the other way"
    assert apart[-1] < 0.1
    assert agreement(answer, golden) > 0.95


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3_bf16", "olmo2", "granite", "llama_q4_1", "llama_k_quants"])
def test_any_instruction_set_computes_it(models, name):
    spec = tiny_models.MODELS[name]
    answer = json.loads(run(models(name, "gguf"), "--isa", "plain"))
    assert max(differences(answer, TINY["models"][name])) < (0.3 if spec.quantised else 1e-4)


@pytest.mark.parametrize("kv_type", ["f32", "bf16"])
@pytest.mark.parametrize(
    "name", ["llama_tied_bf16", "mistral", "qwen2_q5_1", "qwen3_q8_0", "smollm3", "llama_k_quants"]
)
def test_chunks_decoding_and_threads_do_not_show(models, name, kv_type):
    path, options = models(name, "gguf"), ("--kv-cache-dtype", kv_type)
    whole = run(path, *options)
    for changed in (
        ("--chunk", 1),
        ("--chunk", 7),
        ("--chunk", 32),
        ("--decode-from", 0),
        ("--decode-from", 20),
        ("--chunk", 9, "--decode-from", 30),
        ("--threads", 1),
        ("--threads", 3, "--chunk", 20),
    ):
        assert run(path, *options, *changed) == whole, changed


@pytest.mark.parametrize(
    "name, changes",
    [
        ("llama", {"rope_theta": 12000.0}),
        ("llama", {"rms_norm_eps": 1e-3}),
        ("llama_rope_linear", {"rope_scaling": None}),
        ("llama_rope_llama3", {"rope_scaling": {**tiny_models.LLAMA3, "low_freq_factor": 0.5}}),
        ("llama_rope_yarn", {"rope_scaling": {**tiny_models.YARN, "beta_fast": 16.0}}),
        ("llama_rope_yarn", {"rope_scaling": {**tiny_models.YARN, "attention_factor": 1.0}}),
        ("mistral", {"sliding_window": 13}),
        ("mistral", {"sliding_window": None}),
        ("smollm3", {"no_rope_layers": [1, 1, 1, 1, 1]}),
        ("smollm3", {"no_rope_layers": [1, 1, 0, 1, 1]}),
        ("olmo2", {"rms_norm_eps": 1e-2}),
        *(("granite", {key: value * 1.1}) for key, value in tiny_models.GRANITE.items()),
    ],
)
def test_goldens_notice_a_small_change_of_the_model(models, tmp_path, name, changes):
    whole = models(name, "folder")
    (tmp_path / "model.safetensors").write_bytes((whole / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**json.loads((whole / "config.json").read_text()), **changes}))
    assert max(differences(json.loads(run(tmp_path)), TINY["models"][name])) > 1e-3


@needs_model
def test_the_default_model_computes_what_transformers_does():
    answer = json.loads(run(MODEL, "--kv-cache-dtype", "bf16", ids=SMOLLM2["ids"], positions=SMOLLM2["top"]))
    for golden in (SMOLLM2, SMOLLM2["with_8_bit_activations"]):
        apart = [abs(answer["logits"][p][id] - logit) for p, top in golden["top"].items() for id, logit in top]
        assert sum(apart) / len(apart) < 0.3
        assert max(apart) < 1.5
        assert agreement(answer, golden) > 0.9


@needs_model
def test_chunks_and_decoding_do_not_show_in_the_default_model():
    ids = SMOLLM2["ids"][:60]
    whole = run(MODEL, "--kv-cache-dtype", "bf16", ids=ids, positions=[59])
    assert run(MODEL, "--kv-cache-dtype", "bf16", "--chunk", 17, "--decode-from", 41, ids=ids, positions=[59]) == whole


def test_people_see_the_likeliest_tokens(models):
    done = quire("inspect", "logits", models("llama", "folder"), "--ids", "1,2,3")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "llama, 3 layers of width 64 and 96, 4 heads of 16 on 2 kv heads, vocabulary 320, context 2048" in lines[0]
    assert lines[-1].split()[0] == "2" and len(lines[-1].split()) == 11


@pytest.mark.parametrize(
    "options, said",
    [
        (["--ids", "1,320"], "id 320 is not between 0 and 319"),
        (["--ids", "1,-1"], "id -1 is not between 0 and 319"),
        (["--ids", ",".join(["1"] * 2049)], "2049 ids; the model takes 1 to 2048"),
        (["--ids", "1,2", "--positions", "2"], "position 2 is not between 0 and 1"),
        (["--ids", "1,2", "--chunk", "0"], "chunks of 0 tokens"),
        (["--ids", "1,2", "--decode-from", "3"], "decoding from 3 of 2 tokens"),
    ],
)
def test_bad_options_are_refused_in_one_line(models, options, said):
    done = quire("inspect", "logits", models("llama", "gguf"), *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in one_line(done.stderr)


def test_names_of_types_are_those_of_other_commands():
    reason = usage_error(quire("inspect", "logits", "--ids", "1,2", "--kv-cache-dtype", "q4"))
    assert reason.startswith("quire inspect logits: --kv-cache-dtype is one of auto, bf16")
    assert "z80" in usage_error(quire("inspect", "logits", "--ids", "1,2", "--isa", "z80"))


def test_bad_models_are_refused_in_one_line(models, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "not_gguf").write_bytes(b"GGUX" + bytes(100))
    short = tmp_path / "short.gguf"
    short.write_bytes(models("llama", "gguf").read_bytes()[:-64])
    for path, said in (
        (tmp_path / "nothing", "nothing"),
        (tmp_path / "empty", "is not a model folder: it has no config.json"),
        (tmp_path / "not_gguf", "not_gguf"),
        (short, "short.gguf"),
    ):
        done = quire("inspect", "logits", path, "--ids", "1")
        assert (done.returncode, done.stdout) == (2, "")
        assert said in one_line(done.stderr)
