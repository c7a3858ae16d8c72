"""The page as `quire serve` gives it, with the default model behind it."""

import re
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from browser import Keys, Page, checked, chromium  # noqa: F401
from program import MODEL, QUIRE, environment, needs_model

pytestmark = needs_model


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def healthy(url):
    try:
        with urllib.request.urlopen(url + "health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def serve(log, *arguments):
    """Runs a server until the test is done; gives its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    command = [QUIRE, "serve", "--model-path", MODEL, "--host", "127.0.0.1", "--port", str(port), *arguments]
    with open(log, "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment())
    try:
        deadline = time.monotonic() + 60
        while not healthy(url):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        assert process.wait(30) == 0, log.read_text()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    yield from serve(tmp_path_factory.mktemp("serve") / "log")


@pytest.fixture
def page(chromium, address):  # noqa: F811
    opened = Page(chromium, address).open()
    opened.set("temperature", "0")
    opened.set("max_tokens", "24")
    yield from checked(opened)


def metric(address, name):
    with urllib.request.urlopen(address + "metrics", timeout=5) as answer:
        return float(re.search(rf"^sglang:{name}(?:{{.*}})? (\S+)", answer.read().decode(), re.M)[1])


def test_the_policy_lets_nothing_else_in(address):
    with urllib.request.urlopen(address, timeout=5) as answer:
        assert answer.headers["Content-Type"].startswith("text/html")
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy
    assert "http" not in policy and "*" not in policy


def test_an_answer_streams_in_and_has_its_figures(page):
    page.set("max_tokens", "150")
    page.set("repetition_penalty", "1.3")
    lengths = page.growth("Write a story about a fisherman.")
    assert lengths == sorted(lengths) and len(lengths) > 5
    assert re.search(r"[\d.]+ tokens/s · first token after [\d.]+ m?s · 1?\d\d tokens · prompt \d+", page.figures())


def test_the_model_is_named_and_knows_the_sky(page):
    page.until(lambda: page.text("#model") not in ("", "connecting…"), "its name")
    assert "blue" in page.ask("What color is the sky?")


def test_stop_frees_the_server(page, address):
    page.set("max_tokens", "4000")
    page.set("repetition_penalty", "1.3")
    page.send("Write a very long story about a fisherman.")
    page.until(lambda: len(page.answer()) > 20, "the first words", 60)
    assert metric(address, "num_running_reqs") == 1
    page.press(Keys.ESCAPE)
    page.until(lambda: not page.busy(), "the end", 2)
    page.until(lambda: metric(address, "num_running_reqs") == 0, "the server to be idle", 5)
    assert page.figures().startswith("stopped")


def test_a_reload_keeps_the_chat_and_it_goes_on_from_the_cache(page):
    page.ask("Tell me about the sea.")
    answer = page.answer()
    page.reload()
    assert page.answer() == answer
    page.ask("Tell me more.")
    assert re.search(r"prompt \d+, \d+ cached", page.figures())


def test_the_same_seed_gives_the_same_answer_again(page):
    page.set("temperature", "1")
    page.set("seed", "7")
    first = page.ask("Name an animal.")
    page.button("Regenerate").click()
    page.until(lambda: not page.busy() and page.answer(), "the answer", 60)
    assert page.answer() == first


def test_json_by_a_schema(page):
    page.set("format", "JSON by a schema")
    page.set("schema", '{"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], '
             '"additionalProperties": false}')
    page.ask("A number, please.")
    assert re.fullmatch(r'\{\s*"n"\s*:\s*[12]\s*\}', page.text(".answer pre").strip())


def test_every_setting_is_understood(page):
    given = {"top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 7, "stop": "fisherman"}
    given |= {"frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.1, "system": "Be brief."}
    for name, value in given.items():
        page.set(name, str(value))
    assert page.ask("Hi") and not page.all(".failure")


def test_a_prompt_that_is_too_long_is_explained(page):
    page.script("document.getElementById('prompt').value = 'word '.repeat(20000)")
    page.one("#prompt").send_keys(Keys.ENTER)
    assert page.failure().startswith("This chat is too long for the model.\nIt says: “")


def test_the_live_view_sees_the_running_request(page):
    page.set("max_tokens", "4000")
    page.set("repetition_penalty", "1.3")
    page.send("Write a very long story about a fisherman.")
    page.until(lambda: page.text(".tile:first-child dd").strip() == "1", "it to be seen running", 10)
    page.until(lambda: re.search(r"of [\d,]+ tokens", page.text(".tile.wide dd")), "the page pool")
    page.press(Keys.ESCAPE)
    page.until(lambda: page.text(".tile:first-child dd").strip() == "0", "it to be gone", 10)


@pytest.fixture(scope="module")
def locked_address(tmp_path_factory):
    yield from serve(tmp_path_factory.mktemp("locked") / "log", "--api-key", "secret", "--metrics-key", "other")


@pytest.fixture
def locked(chromium, locked_address):  # noqa: F811
    yield from checked(Page(chromium, locked_address).open())


def test_the_page_is_open_and_asks_for_the_keys(locked):
    locked.until(lambda: locked.shows("#key-dialog"), "the dialog")
    locked.press("secret", Keys.ENTER)
    locked.until(lambda: "want a key" in locked.text("#live-note"), "the metrics to want theirs")
    locked.set("max_tokens", "8")
    assert locked.ask("Hi")
    locked.button("Give the key").click()
    locked.until(lambda: locked.shows("#key-dialog"), "the dialog")
    locked.press("other", Keys.ENTER)
    locked.until(lambda: "generated" in locked.text("#live-note"), "the numbers")
