"""`quire inspect` from the outside: whole answers to small steps worked by hand, and one clear line for every bad input."""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUIRE = os.environ.get("QUIRE", str(ROOT / "build" / "cpu" / "app" / "quire"))


def run(*arguments, text=""):
    return subprocess.run([QUIRE, "inspect", *arguments], input=text, capture_output=True, text=True, timeout=60)


def sets_of(step):
    done = run("step", "-", text=json.dumps(step))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)["sets"]


def refusal(text):
    done = run("step", "-", text=text)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("quire inspect step: ")
    assert done.stderr.count("\n") == 1 and done.stderr.endswith("\n")
    return done.stderr


def slots(*pages, size=16):
    return [page * size + offset for page in pages for offset in range(size)]


# Row r holds the slots 100 r, 100 r + 1, ...: pages of one token.
TOKENS = [[100 * row + position for position in range(20)] for row in range(4)]
# Pages of sixteen: row 1 has pages 5, 2, 9; row 2 has pages 7, 3.
PAGES = [slots(0, 0, 0), slots(5, 2, 9), slots(7, 3)]

ONES = {"page_size": 1, "context": 20, "captured_batch": 3, "request_table": TOKENS, "request_rows": [2, 1]}
SIXTEENS = {"page_size": 16, "context": 48, "captured_batch": 3, "request_table": PAGES, "request_rows": [2, 1]}

EXAMPLES = {
    "decode": (
        {**SIXTEENS, "mode": "decode", "lengths": [5, 33]},
        {
            "decode": {
                "cache_seqlens": [5, 33, 1],
                "cu_seqlens_q": [0, 1, 2, 3],
                "cu_seqlens_k": [0, 5, 38, 39],
                "page_table": [[7], [5, 2, 9], [0]],
            }
        },
    ),
    "without captured_batch nothing is padded": (
        {**{k: v for k, v in SIXTEENS.items() if k != "captured_batch"}, "mode": "decode", "lengths": [5, 33]},
        {
            "decode": {
                "cache_seqlens": [5, 33],
                "cu_seqlens_q": [0, 1, 2],
                "cu_seqlens_k": [0, 5, 38],
                "page_table": [[7], [5, 2, 9]],
            }
        },
    ),
    "extend": (
        {**SIXTEENS, "mode": "extend", "lengths": [5, 33], "extend_lengths": [5, 2]},
        {
            "extend": {
                "cache_seqlens": [5, 33, 1],
                "cu_seqlens_q": [0, 5, 7, 7],
                "cu_seqlens_k": [0, 5, 38, 39],
                "page_table": [[7], [5, 2, 9], [0]],
            }
        },
    ),
    "draft_extend": (
        {**SIXTEENS, "mode": "draft_extend", "lengths": [17, 16], "extend_lengths": [3, 3]},
        {
            "draft_extend": {
                "cache_seqlens": [17, 16, 1],
                "cu_seqlens_q": [0, 3, 6, 6],
                "cu_seqlens_k": [0, 17, 33, 34],
                "page_table": [[7, 3], [5], [0]],
            }
        },
    ),
    "draft": (
        {**SIXTEENS, "mode": "draft", "lengths": [14, 0], "num_steps": 4, "step": 1},
        {
            "decode": {
                "cache_seqlens": [16, 2, 1],
                "cu_seqlens_q": [0, 1, 2, 3],
                "cu_seqlens_k": [0, 16, 18, 19],
                "page_table_draft_decode": [[7], [5], [0]],
            }
        },
    ),
    "draft_tree": (
        {
            **ONES,
            "mode": "draft_tree",
            "lengths": [3, 0],
            "topk": 2,
            "num_steps": 3,
            "step": 1,
            "draft_slots": [11, 12, 13, 21, 22, 23, 31, 32, 33, 41, 42, 43],
        },
        {
            "draft.prefix": {
                "cache_seqlens": [3, 0, 1],
                "cu_seqlens_q": [0, 2, 4, 6],
                "cu_seqlens_k": [0, 3, 3, 4],
                "page_table": [[200, 201, 202], [], [0]],
            },
            "draft.branch": {
                "cache_seqlens": [2, 2, 2, 2, 1, 1],
                "cu_seqlens_q": [0, 1, 2, 3, 4, 5, 6],
                "cu_seqlens_k": [0, 2, 4, 6, 8, 9, 10],
                "page_table": [[11, 12], [21, 22], [31, 32], [41, 42], [0], [0]],
            },
        },
    ),
    "verify": (
        {**SIXTEENS, "mode": "verify", "lengths": [14, 2], "num_draft_tokens": 3},
        {
            "verify": {
                "cache_seqlens": [17, 5, 1],
                "cu_seqlens_q": [0, 3, 6, 9],
                "cu_seqlens_k": [0, 17, 22, 23],
                "page_table": [[7, 3], [5], [0]],
            }
        },
    ),
    "verify_tree": (
        {
            **SIXTEENS,
            "mode": "verify_tree",
            "lengths": [15, 2],
            "num_draft_tokens": 3,
            "tree_mask": [[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1]],
        },
        {
            "verify_tree.prefix": {
                "cache_seqlens": [15, 2, 1],
                "cu_seqlens_q": [0, 3, 6, 9],
                "cu_seqlens_k": [0, 15, 17, 18],
                "page_table": [[7], [5], [0]],
            },
            "verify_tree.branch": {
                "cache_seqlens": [1, 2, 2, 1, 2, 3, 1, 1, 1],
                "cu_seqlens_q": list(range(10)),
                "cu_seqlens_k": [0, 1, 3, 5, 6, 8, 11, 12, 13, 14],
                "page_table": [[127], [127, 48], [127, 49], [82], [82, 83], [82, 83, 84], [0], [0], [0]],
            },
        },
    ),
    "local": (
        {**SIXTEENS, "mode": "local", "lengths": [5, 40], "chunk": 32},
        {
            "decode": {
                "cache_seqlens": [5, 40, 1],
                "cu_seqlens_q": [0, 1, 2, 3],
                "cu_seqlens_k": [0, 5, 45, 46],
                "page_table": [[7], [5, 2, 9], [0]],
            },
            "local": {
                "local_query_start_loc": [0, 1, 2, 3],
                "local_seqused_k": [5, 8, 1],
                "local_block_table": [[7], [9], [0]],
            },
        },
    ),
    "local with extend": (
        {**ONES, "mode": "local", "lengths": [6, 9], "extend_lengths": [4, 5], "chunk": 4},
        {
            "local": {
                "local_query_start_loc": [0, 2, 4, 8, 9, 9],
                "local_seqused_k": [4, 2, 4, 1, 1],
                "local_block_table": [[200, 201, 202, 203], [204, 205], [104, 105, 106, 107], [108], [0]],
            },
            "extend": {
                "cache_seqlens": [6, 9, 1],
                "cu_seqlens_q": [0, 4, 9, 9],
                "cu_seqlens_k": [0, 6, 15, 16],
                "page_table": [list(range(200, 206)), list(range(100, 109)), [0]],
            },
        },
    ),
    "encoder": (
        {**SIXTEENS, "mode": "encoder", "lengths": [3, 4], "encoder_lengths": [9, 17]},
        {
            "decode": {
                "cache_seqlens": [3, 4, 1],
                "cu_seqlens_q": [0, 1, 2, 3],
                "cu_seqlens_k": [0, 3, 7, 8],
                "page_table": [[3], [9], [0]],
            },
            "encoder": {
                "encoder_lens_int32": [9, 17, 1],
                "encoder_cu_seqlens_k": [0, 9, 26, 27],
                "encoder_page_table": [[7], [5, 2], [0]],
            },
        },
    ),
    "window": (
        # Pages move up by ten; page 5 has left the window.
        {
            **SIXTEENS,
            "mode": "window",
            "lengths": [5, 33],
            "full_to_swa": [-1 if page == 5 else slot for page in range(10) for slot in slots(page + 10)],
        },
        {
            "decode": {
                "cache_seqlens": [5, 33, 1],
                "cu_seqlens_q": [0, 1, 2, 3],
                "cu_seqlens_k": [0, 5, 38, 39],
                "page_table": [[7], [5, 2, 9], [0]],
            },
            "window": {
                "cache_seqlens": [5, 33, 1],
                "cu_seqlens_q": [0, 1, 2, 3],
                "cu_seqlens_k": [0, 5, 38, 39],
                "page_table": [[17], [0, 12, 19], [0]],
            },
        },
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_step(name):
    step, expected = EXAMPLES[name]
    assert sets_of(step) == expected


def test_step_from_a_file(tmp_path):
    step, expected = EXAMPLES["verify"]
    path = tmp_path / "step.json"
    path.write_text(json.dumps(step))
    done = run("step", str(path))
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"sets": expected}


def test_no_live_request():
    sets = sets_of({**SIXTEENS, "mode": "decode", "request_rows": [], "lengths": []})
    assert sets["decode"]["cache_seqlens"] == [1, 1, 1]
    assert sets["decode"]["page_table"] == [[0], [0], [0]]


DECODE = EXAMPLES["decode"][0]
VERIFY_TREE = EXAMPLES["verify_tree"][0]
DRAFT_TREE = EXAMPLES["draft_tree"][0]

BAD_STEPS = {
    "unknown mode": ({**DECODE, "mode": "dream"}, 'mode "dream" is not one of decode, extend'),
    "mode is a number": ({**DECODE, "mode": 3}, "mode is not a string"),
    "page size": ({**DECODE, "page_size": 8}, "page size 8 is not one of 1, 16, 32, 64, 128"),
    "page size is text": ({**DECODE, "page_size": "16"}, "page_size is not a whole number but string"),
    "context": ({**DECODE, "context": 0}, "context = 0"),
    "fraction": ({**DECODE, "lengths": [5, 3.5]}, "lengths[1] is not a whole number"),
    "beyond 64 bits": ({**DECODE, "lengths": [5, 10**30]}, "lengths[1]"),
    "beyond 32 bits": ({**DECODE, "lengths": [5, 2**63]}, "lengths[1] = 9223372036854775808"),
    "context beyond 32 bits": ({**DECODE, "context": 2**32 + 48}, "context = 4294967344"),
    "captured batch": ({**DECODE, "captured_batch": 1}, "captured_batch 1"),
    "captured batch of millions": ({**DECODE, "captured_batch": 10**8}, "captured_batch = 100000000"),
    "length past the context": ({**DECODE, "context": 32}, "lengths[1] = 33 is past the context of 32"),
    "length of nothing": ({**DECODE, "lengths": [0, 5]}, "request 0: lengths[0] = 0 is below 1"),
    "negative length": ({**DECODE, "lengths": [-5, 5]}, "lengths[0] = -5"),
    "lengths missing one": ({**DECODE, "lengths": [5]}, "lengths has 1 elements, not 2"),
    "lengths is a number": ({**DECODE, "lengths": 5}, "lengths is not an array but number"),
    "row outside": ({**DECODE, "request_rows": [2, 3]}, "request_rows[1] = 3 is not a row"),
    "reserved row": ({**DECODE, "request_rows": [0, 1]}, "request_rows[0] = 0 is the reserved row"),
    "negative row": ({**DECODE, "request_rows": [-1, 1]}, "request_rows[0] = -1 is not a row"),
    "row too short": ({**DECODE, "lengths": [33, 5]}, "request_table[2] has 2 pages, request 0 of length 33 needs 3"),
    "table is text": ({**DECODE, "request_table": "none"}, "request_table is not an array"),
    "row is a number": ({**DECODE, "request_table": [1, 2]}, "request_table[0] is not an array but number"),
    "empty table": ({**DECODE, "request_table": []}, "request_table has no slots"),
    "negative slot": ({**ONES, "mode": "decode", "lengths": [1, 1], "request_table": [[1], [-1], [2]]}, "request_table[1][0]"),
    "half a page": ({**DECODE, "request_table": [slots(0)[:8]] * 3}, "request_table[0] has 8 slots"),
    "slots out of order": (
        {**DECODE, "request_table": [slots(0), slots(5, 2, 9), list(reversed(slots(7)))]},
        "request_table[2]: the slots [0, 16) do not form a whole page of 16",
    ),
    "slots across pages": (
        {**DECODE, "request_table": [slots(0), slots(5) + [40 + i for i in range(16)], slots(7)]},
        "request_table[1]: the slots [16, 32) do not form a whole page of 16",
    ),
    "extend past the length": ({**DECODE, "mode": "extend", "extend_lengths": [6, 1]}, "extend_lengths[0] = 6"),
    "draft step": ({**DECODE, "mode": "draft", "num_steps": 3, "step": 2}, "draft step 2"),
    "no steps": ({**DECODE, "mode": "draft", "num_steps": 0}, "num_steps = 0"),
    "draft slots missing": ({**DRAFT_TREE, "draft_slots": [1, 2]}, "draft_slots has 2 elements, not 12"),
    "negative draft slot": ({**DRAFT_TREE, "draft_slots": [-1] * 12}, "draft_slots[0] = -1"),
    "too many branches": ({**DRAFT_TREE, "topk": 2000}, "topk = 2000"),
    "mask too few rows": ({**VERIFY_TREE, "tree_mask": [[1, 0, 0]]}, "tree_mask has 1 rows, not 6"),
    "mask too narrow": ({**VERIFY_TREE, "tree_mask": [[1, 0]] * 6}, "tree_mask[0] has 2 elements, not 3"),
    "mask of twos": ({**VERIFY_TREE, "tree_mask": [[2, 0, 0]] * 6}, "tree_mask[0][0] = 2"),
    "node that does not see itself": ({**VERIFY_TREE, "tree_mask": [[1, 0, 0]] * 6}, "tree_mask[1][1]"),
    "verify past the row": ({**DECODE, "mode": "verify", "lengths": [5, 47], "num_draft_tokens": 4}, "lengths[1] = 47 needs 4 pages"),
    "chunk": ({**DECODE, "mode": "local", "chunk": 24}, "chunk 24 is not a multiple of the page size 16"),
    "encoder lengths": ({**DECODE, "mode": "encoder", "encoder_lengths": [-1, 0]}, "encoder_lengths[0] = -1"),
    "map too short": ({**DECODE, "mode": "window", "full_to_swa": [1, 2]}, "full_to_swa has 2 entries"),
    "map that breaks pages": ({**DECODE, "mode": "window", "full_to_swa": [3] * 400}, "full_to_swa: the entries"),
}


@pytest.mark.parametrize("name", BAD_STEPS)
def test_bad_step(name):
    step, part = BAD_STEPS[name]
    assert part in refusal(json.dumps(step))


@pytest.mark.parametrize(
    "mode, key",
    [
        ("decode", "mode"),
        ("decode", "page_size"),
        ("decode", "context"),
        ("decode", "request_table"),
        ("decode", "request_rows"),
        ("decode", "lengths"),
        ("extend", "extend_lengths"),
        ("draft", "num_steps"),
        ("draft_tree", "topk"),
        ("draft_tree", "draft_slots"),
        ("verify", "num_draft_tokens"),
        ("verify_tree", "tree_mask"),
        ("local", "chunk"),
        ("encoder", "encoder_lengths"),
        ("window", "full_to_swa"),
    ],
)
def test_missing_key(mode, key):
    step = {k: v for k, v in EXAMPLES[mode][0].items() if k != key}
    assert f'the key "{key}" is missing' in refusal(json.dumps(step))


@pytest.mark.parametrize(
    "text, part",
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("\x00\x01", "not JSON"),
        ('{"mode": "decode",}', "not JSON"),
        ("[1, 2]", "not an object but array"),
        ("[" * 100000, "nested deeper"),
        ('{"a":' * 100000, "nested deeper"),
        (json.dumps({"mode": [[[[[1]]]]]}), "nested deeper"),
    ],
)
def test_not_a_step(text, part):
    assert part in refusal(text)


def test_file_that_is_not_there(tmp_path):
    done = run("step", str(tmp_path / "none.json"))
    assert done.returncode == 2
    assert "cannot be read: No such file or directory" in done.stderr


def test_folder_in_place_of_a_file(tmp_path):
    done = run("step", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_input_without_end():
    assert "longer than" in refusal(" " * (64 * 2**20 + 1))


def metadata(*arguments):
    done = run("metadata", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_metadata_json():
    table = metadata(
        "--batch", "5", "--context-length", "100", "--draft-tokens", "7", "--topk", "3", "--form", "materialised"
    )
    assert table["limits"]["batch"] == 5
    buffers = {(b["set"], b["buffer"]): b for b in table["buffers"]}
    assert len(buffers) == len(table["buffers"])
    assert buffers["decode", "page_table"]["shape"] == [5, 7]  # 107 tokens in pages of 16
    assert buffers["verify_tree.branch", "page_table"]["shape"] == [35, 7]
    assert buffers["verify_tree.branch", "page_table"]["element"] == "slot"
    assert buffers["work", "partial_out"]["role"] == "kernel"
    for buffer in table["buffers"]:
        assert buffer["bytes"] == 4 * buffer["shape"][0] * buffer["shape"][1]
    assert table["declared_bytes"] == sum(b["bytes"] for b in table["buffers"])
    assert table["arena_bytes"] >= table["declared_bytes"]


def test_metadata_of_a_device_and_a_form():
    server = ["--batch", "160", "--context-length", "131072", "--threads", "16"]
    tables = {(d, f): metadata(*server, "--device", d, "--form", f) for d in ("cpu", "cuda") for f in ("in_place", "materialised")}
    for (device, form), table in tables.items():
        assert (table["limits"]["device"], table["limits"]["form"]) == (device, form)
        sets = {b["set"] for b in table["buffers"]}
        assert ("work" in sets, "split" in sets) == (device == "cpu", device == "cuda")
        assert any(b["role"] == "table" for b in table["buffers"]) == (form == "materialised")
        assert {b["on"] for b in table["buffers"]} == {"any", device}
    assert tables["cpu", "in_place"]["arena_bytes"] > 17e9  # address space, for what sixteen threads leave behind
    assert tables["cuda", "in_place"]["arena_bytes"] < 32e6
    assert tables["cuda", "materialised"]["arena_bytes"] < 128e6


def attention(*arguments):
    done = run("attention", *arguments)
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert list(lines) == ["problem", "device", "kernel", "because"]
    return lines


def test_attention_says_which_kernel_takes_a_problem_and_why():
    decode = attention("--batch", "128")
    assert decode["problem"].startswith("decode of 128 sequences, up to 4096 keys in pages of 16: attention of bf16")
    assert decode["kernel"] == "decode, 128 blocks, row by row, 8 rows a warp, teams of 1, 3 stages"
    assert decode["because"].startswith("few queries")
    assert attention("--deterministic")["kernel"] == "decode_parts, 128 blocks, row by row, clusters of 16"
    assert attention("--deterministic", "--batch", "2")["kernel"].endswith("fixed parts")
    extend = ["--mode", "extend", "--context-length", "32768", "--queries"]
    assert attention(*extend, "2048")["kernel"].startswith("prefill, ")
    assert attention(*extend, "64")["kernel"].endswith("keys split")
    few = attention(*extend, "16")
    assert few["kernel"].startswith("decode, ")
    assert few["because"].startswith("few queries of each sequence")
    assert attention("--dtype", "f32", "--kv-cache-dtype", "f32")["kernel"] == "general"


def test_attention_that_no_kernel_takes_is_one_line():
    done = run("attention", "--key-dim", "576", "--value-dim", "512", "--kv-heads", "1", "--shared-bytes", "101376")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "no kernel for attention of bf16 queries" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_metadata_table_has_a_line_for_every_buffer():
    lines = run("metadata").stdout.splitlines()
    buffers = json.loads(run("metadata", "--json").stdout)["buffers"]
    for buffer in buffers:
        assert any(line.split()[:2] == [buffer["set"], buffer["buffer"]] for line in lines)
    assert f"{len(buffers)} buffers" in lines[-1]


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["--page-size", "8"], "page size 8 is not one of"),
        (["--batch", "0"], "batch 0"),
        (["--chunk", "24"], "chunk 24 is not a multiple"),
        (["--heads", "9", "--kv-heads", "2"], "heads 9 is not a multiple of kv heads 2"),
        (["--batch", "1000000", "--context-length", "1000000"], "more than 32 bits count"),
    ],
)
def test_bad_limits(arguments, part):
    done = run("metadata", *arguments)
    assert done.returncode == 2
    assert part in done.stderr
    assert done.stderr.count("\n") == 1
