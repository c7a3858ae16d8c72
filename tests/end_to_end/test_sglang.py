"""SGLang's interface of `quire serve` on the default model: what its clients and its router send and read."""

import concurrent.futures
import json
import re

import pytest
from program import MODEL, needs_model
from served import serve

pytestmark = needs_model

PROMPT = "The capital of France is"
GREEDY = {"temperature": 0, "max_new_tokens": 16}
ENDLESS = {"max_new_tokens": 4000, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("serve"), "--served-model-name", "smol") as running:
        yield running


def generate(server, **body):
    answer = server.post("/generate", body)
    assert answer.status == 200, answer.text
    return answer.json()


def stream(server, **body):
    *parts, done = server.events("/generate", {**body, "stream": True})
    assert done == "[DONE]"
    return [json.loads(part) for part in parts]


def refused(server, **body):
    """The message of a 400."""
    answer = server.post("/generate", body)
    assert answer.status == 400, answer.text
    return answer.json()["error"]["message"]


# --- /generate


def test_a_text_is_continued(server):
    found = generate(server, text=PROMPT, sampling_params=GREEDY)
    meta = found["meta_info"]
    assert "Paris" in found["text"]
    assert len(found["output_ids"]) == meta["completion_tokens"] <= 16
    assert meta["prompt_tokens"] == server.post("/tokenize", {"prompt": PROMPT}).json()["count"]
    assert meta["finish_reason"]["type"] in ("length", "stop")
    assert meta["e2e_latency"] > 0 and meta["id"]


def test_text_and_its_tokens_are_the_same_prompt(server):
    ids = server.post("/tokenize", {"prompt": PROMPT}).json()["tokens"]
    by_text = generate(server, text=PROMPT, sampling_params=GREEDY)
    by_ids = generate(server, input_ids=ids, sampling_params=GREEDY)
    assert by_text["output_ids"] == by_ids["output_ids"]


def test_a_batch_gives_what_its_texts_give_alone(server):
    texts = [PROMPT, "Once upon a time", "def main():"]
    params = [{**GREEDY, "max_new_tokens": count} for count in (4, 8, 12)]
    batch = generate(server, text=texts, sampling_params=params, rid=["x", "y", "z"])
    alone = [generate(server, text=text, sampling_params=one) for text, one in zip(texts, params, strict=True)]
    assert [one["text"] for one in batch] == [one["text"] for one in alone]
    assert [one["meta_info"]["id"] for one in batch] == ["x", "y", "z"]


def test_several_choices_are_one_list(server):
    params = {"temperature": 1, "max_new_tokens": 12, "n": 3, "sampling_seed": 7}
    found = generate(server, text=["Once", "Twice"], sampling_params=params)
    assert len(found) == 6
    assert len({one["text"] for one in found[:3]}) == 3  # seeds differ
    again = generate(server, text=["Once", "Twice"], sampling_params=params)
    assert [one["text"] for one in again] == [one["text"] for one in found]


def test_a_stream_gives_the_text_so_far(server):
    whole = generate(server, text=PROMPT, sampling_params=GREEDY)
    parts = stream(server, text=PROMPT, sampling_params=GREEDY)
    assert len(parts) > 3
    for before, after in zip(parts, parts[1:]):
        assert after["text"].startswith(before["text"])
        assert after["meta_info"]["completion_tokens"] > before["meta_info"]["completion_tokens"]
        assert before["meta_info"]["finish_reason"] is None
    assert parts[-1]["text"] == whole["text"]
    assert parts[-1]["output_ids"] == whole["output_ids"]
    assert parts[-1]["meta_info"]["finish_reason"] == whole["meta_info"]["finish_reason"]


def test_a_batch_streams_with_indices(server):
    texts = [PROMPT, "Once upon a time"]
    last = {}
    for part in stream(server, text=texts, sampling_params=GREEDY):
        last[part["index"]] = part
    whole = generate(server, text=texts, sampling_params=GREEDY)
    assert [last[i]["text"] for i in range(2)] == [one["text"] for one in whole]


def test_stop_texts_and_tokens(server):
    whole = generate(server, text="1, 2, 3, 4,", sampling_params={**GREEDY, "max_new_tokens": 24})
    stop = whole["text"][6:9]
    found = generate(server, text="1, 2, 3, 4,", sampling_params={**GREEDY, "max_new_tokens": 24, "stop": [stop]})
    assert found["text"] == whole["text"][: whole["text"].index(stop)]
    assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    token = whole["output_ids"][2]
    found = generate(server, text="1, 2, 3, 4,", sampling_params={**GREEDY, "stop_token_ids": [token]})
    assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}


def test_logprobs(server):
    found = generate(
        server,
        text=PROMPT,
        sampling_params={**GREEDY, "max_new_tokens": 5},
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=4,
        token_ids_logprob=[11, 12],
        return_text_in_logprobs=True,
    )
    meta = found["meta_info"]
    given = meta["input_token_logprobs"]
    assert [entry[1] for entry in given] == server.post("/tokenize", {"prompt": PROMPT}).json()["tokens"]
    assert given[0][0] is None and all(entry[0] < 0 for entry in given[1:])
    assert "".join(entry[2] for entry in given) == PROMPT
    made = meta["output_token_logprobs"]
    assert [entry[1] for entry in made] == found["output_ids"]
    assert [top[0] for top in meta["output_top_logprobs"]] == made  # greedy
    assert all(len(top) == 4 for top in meta["output_top_logprobs"])
    assert meta["input_top_logprobs"][0] is None and len(meta["input_top_logprobs"]) == len(given)
    assert all([entry[1] for entry in ids] == [11, 12] for ids in meta["output_token_ids_logprobs"])


def test_logprobs_do_not_depend_on_how_they_are_asked_for(server):
    """The prompt's, computed in one go, are those that each token had when it was generated."""
    made = generate(server, text=PROMPT, sampling_params=GREEDY, return_logprob=True)
    again = generate(
        server,
        input_ids=server.post("/tokenize", {"prompt": PROMPT}).json()["tokens"] + made["output_ids"],
        sampling_params={"max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=made["meta_info"]["prompt_tokens"] - 1,
    )
    assert again["meta_info"]["input_token_logprobs"][1:] == made["meta_info"]["output_token_logprobs"]
    assert made["meta_info"]["input_token_logprobs"] == []


def test_constraints_hold(server):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "size": {"type": "integer"}},
        "required": ["city", "size"],
        "additionalProperties": False,
    }
    params = {"temperature": 0.7, "max_new_tokens": 100, "sampling_seed": 3}
    found = generate(server, text="As JSON:", sampling_params={**params, "json_schema": json.dumps(schema)})
    assert found["meta_info"]["finish_reason"]["type"] == "stop", found
    value = json.loads(found["text"])
    assert set(value) == {"city", "size"} and isinstance(value["size"], int)

    found = generate(server, text="A date:", sampling_params={**params, "regex": r"[12]\d{3}-[01]\d-[0-3]\d"})
    assert re.fullmatch(r"[12]\d{3}-[01]\d-[0-3]\d", found["text"])

    found = generate(server, text="Well:", sampling_params={**params, "ebnf": 'root ::= "yes" | "no"'})
    assert found["text"] in ("yes", "no")


def test_what_the_router_always_sends_is_taken(server):
    found = generate(
        server,
        text=PROMPT,
        sampling_params=GREEDY,
        model=None,
        return_logprob=False,
        logprob_start_len=-1,
        return_text_in_logprobs=False,
        log_metrics=True,
        return_hidden_states=False,
        background=False,
        no_logs=False,
        return_bytes=False,
        return_entropy=False,
        lora_path=None,
    )
    assert "Paris" in found["text"]


def test_what_is_wrong_is_named(server):
    assert "text" in refused(server)
    assert "topk" in refused(server, text="a", sampling_params={"topk": 1})
    assert "temperature" in refused(server, text="a", sampling_params={"temperature": "hot"})
    assert "image_data" in refused(server, text="a", image_data="x")
    assert "regular expression" in refused(server, text="a", sampling_params={"regex": "("})
    assert "vocabulary" in refused(server, input_ids=[10**8])
    answer = server.post("/generate", '{"text": "a", "text": "b"}')
    assert answer.status == 400


# --- tokens


def test_tokens_and_texts(server):
    texts = ["Hello, world!", "Grüße 🌍", ""]
    found = server.post("/tokenize", {"prompt": texts}).json()
    assert found["count"] == [len(tokens) for tokens in found["tokens"]]
    assert server.post("/detokenize", {"tokens": found["tokens"]}).json()["text"] == texts
    single = server.post("/tokenize", {"text": texts[0], "add_special_tokens": False}).json()
    assert single["tokens"] == found["tokens"][0]
    assert single["max_model_len"] > 0


# --- what the router asks


def test_the_worker_describes_itself(server):
    for path in ("/model_info", "/get_model_info"):
        info = server.get(path).json()
        assert info["model_path"] == MODEL and info["served_model_name"] == "smol"
        assert info["is_generation"] is True and info["architectures"] == ["LlamaForCausalLM"]
    for path in ("/server_info", "/get_server_info"):
        info = server.get(path).json()
        assert (info["tp_size"], info["dp_size"], info["disaggregation_mode"]) == (1, 1, "null")
        assert info["max_total_tokens"] >= info["context_length"] > 0
        assert "load" in info["internal_states"][0]


def test_loads(server):
    (load,) = server.get("/get_load").json()
    assert set(load) >= {"dp_rank", "num_reqs", "num_waiting_reqs", "num_tokens"}
    found = server.get("/v1/loads?include=core").json()
    assert found["aggregate"]["total_tokens"] == sum(load["num_total_tokens"] for load in found["loads"])
    assert found["loads"][0]["max_total_num_tokens"] > 0
    assert server.get("/v1/loads?include=nonsense").status == 400


def test_health(server):
    assert server.get("/health").status == 200
    assert server.get("/health_generate").status == 200


# --- control


def running(server):
    return server.get("/v1/loads").json()["loads"][0]["num_running_reqs"]


def test_a_request_is_aborted_by_its_name(server):
    body = {"text": "Once", "rid": "story", "stream": True, "sampling_params": ENDLESS}
    parts = []
    for part in server.events("/generate", body):
        parts.append(part)
        if len(parts) == 3:
            assert server.post("/abort_request", {"rid": "story"}).json() == {"aborted": 1}
    assert parts[-1] == "[DONE]"
    assert json.loads(parts[-2])["meta_info"]["finish_reason"]["type"] == "abort"
    assert server.post("/abort_request", {"rid": "story"}).json() == {"aborted": 0}


def test_a_client_that_leaves_is_cancelled(server):
    body = {"text": "Once", "stream": True, "sampling_params": ENDLESS}
    with server.open("POST", "/generate", body) as response:
        response.readline()
        server.wait_until(lambda: running(server) == 1)  # the engine's figures follow its tokens
    server.wait_until(lambda: running(server) == 0, 10)


def test_the_cache_is_used_and_flushed(server):
    prompt = "A long story about a fox and a hen, who lived beside each other for many years. " * 8

    def cached():
        return generate(server, text=prompt, sampling_params={"max_new_tokens": 1})["meta_info"]["cached_tokens"]

    cached()
    assert cached() > 100
    answer = server.post("/flush_cache", "")
    assert (answer.status, answer.text) == (200, "Cache flushed.\n")
    assert cached() == 0


# --- metrics


def metrics(server):
    """Every series with its value, by the package that Prometheus' users have."""
    parser = pytest.importorskip("prometheus_client.parser", reason="the package prometheus_client is not installed")
    answer = server.get("/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in parser.text_string_to_metric_families(answer.text)}
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families.values()
        for sample in family.samples
    }


def test_metrics_count_what_happens(server):
    def value(found, name, **labels):
        return found.get((name, *sorted({"model_name": "smol", **labels}.items())), 0)

    before = metrics(server)
    generate(server, text=PROMPT, sampling_params={**GREEDY, "ignore_eos": True})
    refused(server, text=1)
    server.get("/nowhere")

    def rises():
        after = metrics(server)
        return {
            (name, *labels.values()): value(after, name, **labels) - value(before, name, **labels)
            for name, labels in expected
        }

    def answers(endpoint, status):
        return "sglang:http_responses_total", {"endpoint": endpoint, "status_code": status}

    counts = {
        "sglang:num_requests_total": 1,
        "sglang:generation_tokens_total": 16,
        "sglang:time_to_first_token_seconds_count": 1,
        "sglang:inter_token_latency_seconds_count": 15,
        "sglang:e2e_request_latency_seconds_count": 1,
    }
    expected = [(name, {}) for name in counts]
    expected += [answers("/generate", "200"), answers("/generate", "400"), answers("other", "404")]
    wanted = {(name, *labels.values()): counts.get(name, 1) for name, labels in expected}
    server.wait_until(lambda: rises() == wanted, 5)  # an answer may be faster than its figures
    assert value(metrics(server), "sglang:num_running_reqs") == 0
    assert value(metrics(server), "sglang:max_total_num_tokens") > 0


def test_many_at_once_give_what_each_gives_alone(server):
    texts = [f"Number {number} is" for number in range(12)]
    alone = [generate(server, text=text, sampling_params=GREEDY)["text"] for text in texts]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda text: stream(server, text=text, sampling_params=GREEDY)[-1]["text"], texts))
    assert together == alone
