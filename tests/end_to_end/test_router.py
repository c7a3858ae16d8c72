"""Two workers on the default model behind SGLang's router, as docs/scale-out.md puts them."""

import contextlib
import http.client
import json
import signal
import socket
import time
import uuid

import pytest
from program import needs_model

pytest.importorskip("sglang_router", reason="sglang-router is not installed")
from router import NAME, router_running, workers_running  # noqa: E402

pytestmark = needs_model

GREEDY = {"temperature": 0, "max_new_tokens": 12}
KEY = {"Authorization": "Bearer secret"}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # and an empty frame of settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("router")


@pytest.fixture(scope="module")
def workers(folder):
    with workers_running(folder, 2) as running:
        yield running
        missed = [answer for worker in running for answer in worker.answers() if answer[2] in (404, 405, 500)]
        assert not missed  # in all that the tests below made the router ask for


@pytest.fixture(scope="module")
def router(folder, workers):
    with router_running(folder, workers, "--policy", "cache_aware") as running:
        yield running


@pytest.fixture(scope="module")
def in_turn(folder, workers):
    """Another router in front of the same workers, that takes one after the other."""
    with router_running(folder, workers, "--policy", "round_robin") as running:
        yield running


@pytest.fixture(autouse=True)
def all_there(router, workers):
    """Each test begins with two idle workers that have nothing cached, and with both known to the router."""
    router.wait_for_all()
    router.wait_until(lambda: not any(worker.running() for worker in workers))
    assert router.post("/flush_cache", None).status == 200


def fresh(text="Once upon a time"):
    """A text that begins as no other does, so that nothing but the load decides who gets it."""
    return f"{uuid.uuid4().hex} {text}"


def generate(server, text, **more):
    body = {"text": text, "sampling_params": GREEDY, **more}
    answer = server.post("/generate", body)
    assert answer.status == 200, answer.text
    return answer.json()


@contextlib.contextmanager
def stream_running(router, workers, tokens=7000, text=None):
    """A stream through the router whose first part has come, and the worker that runs it."""
    before = [worker.running() for worker in workers]
    params = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 1}
    body = {"text": text or fresh(), "sampling_params": params, "stream": True}
    with router.open("POST", "/generate", body) as response:
        assert response.status == 200, response.read()
        assert response.readline().startswith(b"data: ")
        grown = []

        def found():
            pairs = zip(workers, before, strict=True)
            grown[:] = [worker for worker, count in pairs if worker.process.poll() is None and worker.running() > count]
            return grown

        router.wait_until(found, 10)
        yield response, grown[0]


def other_of(workers, one):
    (other,) = [worker for worker in workers if worker is not one]
    return other


# --- registration


def test_both_workers_are_registered_by_what_they_say_of_themselves(router, workers):
    known = router.get("/workers").json()["workers"]
    assert {one["url"] for one in known} == {worker.url for worker in workers}
    for one in known:
        assert one["is_healthy"] and one["model_id"] == NAME and one["connection_mode"] == "HTTP"
        assert one["metadata"]["served_model_name"] == NAME and one["metadata"]["model_type"] == "llama"


def test_the_router_finds_all_that_it_asks_for(router, workers):
    loads = router.get("/get_loads").json()["workers"]
    assert {one["worker"]: one["load"] for one in loads} == {worker.url: 0 for worker in workers}  # -1: unreadable
    assert router.get("/health_generate").status == 200
    assert router.get("/get_model_info").json()["served_model_name"] == NAME
    for worker in workers:
        answers = worker.answers()
        for path in ("/health", "/server_info", "/model_info", "/get_load"):
            assert ("GET", path, 200) in answers, answers
        assert not [answer for answer in answers if 400 <= answer[2] < 500]


def test_a_probe_for_another_protocol_is_refused_quietly(workers):
    worker = workers[0]
    said = worker.log.read_text()
    with socket.create_connection(("127.0.0.1", worker.port), 10) as probe:
        probe.sendall(PREFACE)
        assert probe.recv(1000) == b""
    new = worker.log.read_text().removeprefix(said)
    assert all("GET /health 200" in line for line in new.splitlines()), new


# --- what callers may do


def test_the_models_are_listed(router):
    assert [model["id"] for model in router.get("/v1/models").json()["data"]] == [NAME]


CALLS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "What is the sea?"}], "max_tokens": 12},
    "/v1/completions": {"prompt": "The sea is", "max_tokens": 12},
    "/generate": {"text": "The sea is", "sampling_params": GREEDY},
}


def whole_text(path, answer):
    if path == "/generate":
        return answer["text"]
    choice = answer["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


def streamed_text(path, events):
    if path == "/generate":
        return events[-1]["text"]
    choices = [event["choices"][0] for event in events if event["choices"]]
    return "".join(choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in choices)


@pytest.mark.parametrize("path", CALLS)
def test_answers_are_those_of_a_worker_whole_or_streamed(router, workers, path):
    body = CALLS[path] if path == "/generate" else {"model": NAME, "temperature": 0, **CALLS[path]}
    direct = workers[0].post(path, body)
    through = router.post(path, body)
    assert direct.status == through.status == 200, through.text
    text = whole_text(path, direct.json())
    assert text and whole_text(path, through.json()) == text
    *events, done = router.events(path, {**body, "stream": True})
    assert done == "[DONE]" and len(events) > 3
    assert streamed_text(path, list(map(json.loads, events))) == text


def test_a_stream_has_its_usage_at_the_end(router):
    body = {"model": NAME, **CALLS["/v1/chat/completions"], "stream": True, "stream_options": {"include_usage": True}}
    *_, last, _ = router.events("/v1/chat/completions", body)
    usage = json.loads(last)["usage"]
    assert 0 < usage["completion_tokens"] <= 12 and usage["prompt_tokens"] > 20


def test_structured_output_and_batches_pass(router):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    body = {"model": NAME, **CALLS["/v1/chat/completions"], "max_tokens": 40, "response_format": form}
    assert json.loads(whole_text("", router.post("/v1/chat/completions", body).json()))["n"] in (1, 2)
    answer = router.post("/generate", {"input_ids": [[504, 3766], [504, 3766, 314]], "sampling_params": GREEDY})
    assert [one["meta_info"]["prompt_tokens"] for one in answer.json()] == [2, 3]


def test_a_chat_that_names_no_model_is_for_the_one_there_is(router):
    answer = router.post("/v1/chat/completions", CALLS["/v1/chat/completions"])
    assert answer.status == 200, answer.text
    assert answer.json()["model"] == NAME


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_of_the_worker_reaches_the_caller_and_costs_nobody_else(router, workers, stream):
    body = {"text": "word " * 9000, "sampling_params": GREEDY, "stream": stream}
    direct = workers[0].post("/generate", body)
    for _ in range(12):
        through = router.post("/generate", body)
        assert direct.status == through.status == 400
        assert through.json() == direct.json()
    generate(router, fresh())


def test_a_caller_who_leaves_frees_the_worker(router, workers):
    aborted = {worker: worker.metric("num_aborted_requests_total") for worker in workers}
    with stream_running(router, workers) as (_, worker):
        assert worker.load()["num_used_tokens"] > 0
    router.wait_until(lambda: worker.running() == 0, 10)
    assert worker.load()["num_used_tokens"] == 0
    router.wait_until(lambda: worker.metric("num_aborted_requests_total") == aborted[worker] + 1, 10)
    router.post("/flush_cache", None)
    router.wait_until(lambda: worker.metric("kv_available_tokens") == worker.metric("max_total_num_tokens"), 10)


# --- where requests go


def hit_rate(router):
    """Three callers with long texts of their own take turns, three turns each."""
    texts = [fresh("The quick brown fox jumps over the lazy dog. " * 12) for _ in range(3)]
    found = [generate(router, f"{text} Turn {turn}.", sampling_params={"max_new_tokens": 1})["meta_info"]
             for turn in range(3) for text in texts]
    return sum(meta["cached_tokens"] for meta in found) / sum(meta["prompt_tokens"] for meta in found)


def test_cache_aware_routing_raises_the_hit_rate(router, in_turn):
    aware = hit_rate(router)
    alternating = hit_rate(in_turn)
    print(f"hit rate: cache_aware {aware:.2f}, round_robin {alternating:.2f}")
    assert aware > 0.55  # two turns of three find their text
    assert alternating < 0.4  # one of three: the second turn comes to the worker that has not seen the text


def test_texts_spread_by_load_and_then_stay_with_their_worker(router, workers):
    long = "The quick brown fox jumps over the lazy dog. " * 6
    first, second = fresh(long), fresh(long)
    with stream_running(router, workers, text=first) as (_, busy):
        idle = other_of(workers, busy)
        before = idle.metric("prompt_tokens_total")
        generate(router, second)
        router.wait_until(lambda: idle.metric("prompt_tokens_total") > before, 10)
    for text in (first, second, first, second):
        assert generate(router, text + " And so on.")["meta_info"]["cached_tokens"] >= 64


def test_flush_reaches_all_workers(router, workers, in_turn):
    text = fresh("The quick brown fox jumps over the lazy dog. " * 6)
    for _ in workers:
        generate(in_turn, text)
    router.wait_until(lambda: all(worker.metric("kv_evictable_tokens") > 0 for worker in workers), 10)
    answer = router.post("/flush_cache", None).json()
    assert answer["workers_flushed"] == len(workers), answer
    assert all(generate(worker, text)["meta_info"]["cached_tokens"] == 0 for worker in workers)


COUNTERS = ("generation_tokens_total", "num_requests_total", "time_to_first_token_seconds_count")


def figures(metrics, mark=""):
    """Values by their names; of lines that differ in their labels, the last."""
    lines = [line for line in metrics.splitlines() if line and line[0] != "#" and mark in line]
    return {line.split("{")[0].replace(":", "_"): float(line.split()[-1]) for line in lines}


def test_the_metrics_of_all_workers_come_together(router, workers, in_turn):
    for _ in workers:
        generate(in_turn, fresh())

    def merged():
        together = router.get("/engine_metrics").text
        for worker in workers:
            own, its = figures(worker.get("/metrics").text), figures(together, f'worker_addr="{worker.url}"')
            assert own.keys() == its.keys()
            if any(own[f"sglang_{name}"] != its[f"sglang_{name}"] or not its[f"sglang_{name}"] for name in COUNTERS):
                return False
        return True

    router.wait_until(merged, 10)


# --- workers that go and come back


def wait_until_it_serves(router, worker):
    """New texts reach this worker, too."""
    router.wait_for_all()

    def reached():
        generate(router, fresh(), sampling_params={"max_new_tokens": 1})
        return worker.metric("num_requests_total") > 0

    router.wait_until(reached, 30)


def test_a_worker_dies_amid_its_streams_and_comes_back(router, workers, in_turn):
    with stream_running(router, workers) as (broken, victim), stream_running(router, workers, 150) as (going_on, other):
        assert other is other_of(workers, victim)
        victim.kill()
        killed = time.monotonic()
        with pytest.raises(http.client.IncompleteRead) as cut:  # the caller can tell that there was more to come
            broken.read()
        assert b"[DONE]" not in cut.value.partial
        assert time.monotonic() - killed < 10
        for _ in range(4):
            generate(router, fresh())  # at once, before the router knows
        assert going_on.read().endswith(b"data: [DONE]\n\n")
    router.wait_until(lambda: router.healthy() == {other.url})
    victim.start()
    wait_until_it_serves(in_turn, victim)


def test_a_worker_is_restarted_and_no_request_is_lost(router, workers, in_turn):
    with stream_running(router, workers, 300) as (response, leaving):
        leaving.process.send_signal(signal.SIGTERM)
        leaving.wait_until(lambda: leaving.get("/health").status == 503)
        for _ in range(4):
            generate(in_turn, fresh())
        assert response.read().endswith(b"data: [DONE]\n\n")
    assert leaving.process.wait(30) == 0
    for _ in range(4):
        generate(in_turn, fresh())
    leaving.start()
    wait_until_it_serves(in_turn, leaving)


# --- keys


def test_a_key_is_asked_for_and_passed_on(folder):
    with (
        workers_running(folder, 1, "--api-key", "secret") as (worker,),
        router_running(folder, [worker], "--api-key", "secret", **KEY) as locked,
    ):
        body = CALLS["/generate"]
        assert worker.post("/generate", body).status == 401
        assert locked.post("/generate", body).status == 401
        assert locked.post("/generate", body, **KEY).status == 200
        *events, done = locked.events("/generate", {**body, "stream": True}, **KEY)
        assert events and done == "[DONE]"
        assert locked.post("/flush_cache", None, **KEY).json()["workers_flushed"] == 1
        assert [model["id"] for model in locked.get("/v1/models").json()["data"]] == [NAME]
        refused = [answer for answer in worker.answers() if answer[2] == 401]
        assert refused == [("POST", "/generate", 401)]  # ours: the router has shown the key each time
