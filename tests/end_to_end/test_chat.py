"""`quire chat` from the outside: through a pipe, and at a terminal (a pty)."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest
from program import QUIRE, environment, needs_model, quire

GREEDY = ["--temperature", "0"]
SKY = "What color is the sky?"
pytestmark = needs_model


def chat(*arguments, lines):
    done = quire("chat", *GREEDY, *arguments, text="".join(line + "\n" for line in lines))
    assert done.returncode == 0, done.stderr
    return done


def test_each_line_of_a_pipe_is_a_turn(tmp_path):
    saved = tmp_path / "saved.json"
    done = chat("--max-tokens", 24, lines=[SKY, "", "And the sea?", f"/save {saved}"])
    messages = json.loads(saved.read_text())
    assert [m["role"] for m in messages] == ["user", "assistant"] * 2
    assert messages[2]["content"] == "And the sea?"
    assert "blue" in messages[1]["content"]
    assert done.stdout == f"{messages[1]['content']}\n{messages[3]['content']}\n"


def cached_of(stats):
    """(prompt tokens, of these cached) of the last answer, from each /stats in order."""
    return [(int(a), int(b)) for a, b in re.findall(r"(\d+) prompt tokens \((\d+) cached\)", stats)]


def test_only_the_new_turn_is_computed():
    lines = ["Tell me about the sea.", "/stats", "Tell me more.", "/stats"]
    first, second = cached_of(chat("--max-tokens", 200, "--page-size", 1, lines=lines).stderr)
    assert first[1] == 0
    turn = second[0] - second[1]
    assert second[1] > first[0]  # the whole first turn and its answer
    assert turn < 32


def test_figures_of_each_answer():
    lines = ["Tell me about the sea.", "Tell me more."]
    told = chat("--max-tokens", 20, "--stats", lines=lines).stderr
    assert len(cached_of(told)) == 2
    assert "answers:" not in told  # of the whole chat only where it is asked for
    assert cached_of(chat("--max-tokens", 20, lines=lines).stderr) == []


def test_an_interrupted_or_cut_answer_is_continued_from_the_cache_too():
    lines = ["Tell me about the sea.", "Tell me more.", "/stats"]
    (last,) = cached_of(chat("--max-tokens", 20, "--page-size", 1, lines=lines).stderr)
    assert last[0] - last[1] < 48


def test_reset_and_system_change_what_the_model_sees(tmp_path):
    saved = tmp_path / "saved.json"
    lines = ["Hi", "/reset", "/system You are a pirate.", "Hello", f"/save {saved}", "/system", f"/save {saved}2"]
    chat("--max-tokens", 4, "--system", "You are a cook.", lines=lines)
    messages = json.loads(saved.read_text())
    assert [m["role"] for m in messages] == ["system", "user", "assistant"]
    assert messages[0]["content"] == "You are a pirate." and messages[1]["content"] == "Hello"
    assert [m["role"] for m in json.loads((tmp_path / "saved.json2").read_text())] == ["user", "assistant"]


def test_the_oldest_turns_are_forgotten_when_the_context_is_full(tmp_path):
    saved = tmp_path / "saved.json"
    lines = [f"Here is sentence number {i}, which says nothing of interest." for i in range(8)]
    done = chat("--max-tokens", 24, "--context-length", 256, lines=[*lines, f"/save {saved}"])
    assert done.stdout.count("\n") >= len(lines)
    assert "forgotten" in done.stderr
    messages = json.loads(saved.read_text())
    assert messages[0]["content"] != lines[0] and messages[-2]["content"] == lines[-1]


def test_a_message_that_is_too_long_is_refused_and_the_chat_goes_on():
    lines = ["word " * 1000, "Hi", "/nonsense"]
    done = quire("chat", *GREEDY, "-n", 8, "-c", 256, text="".join(line + "\n" for line in lines))
    assert done.returncode == 1  # nobody may read what is said
    assert "tokens, and there is room for 248: of the context of 256, 8 are reserved for the answer" in done.stderr
    assert "there is no /nonsense" in done.stderr
    assert done.stdout.strip()


def test_without_any_input_it_says_what_to_do():
    done = chat(lines=[])
    assert done.stdout == "" and "quire generate" in done.stderr


def test_odd_bytes_are_taken_as_they_are():
    done = subprocess.run(
        [QUIRE, "chat", *GREEDY, "--max-tokens", "4"],
        input=b"\xff\xfe caf\xe9 \xf0\x9f\x98\x80\n",
        capture_output=True,
        timeout=60,
        env=environment(),
    )
    assert done.returncode == 0 and done.stdout.decode()


def test_tokens_are_drawn_as_the_models_makers_advise():
    def answer(*arguments):
        options = ["--seed", 3, "--max-tokens", 24]
        return quire("chat", *options, *arguments, text="Tell me a story.\n").stdout

    advised, openai = answer(), answer("--sampling-defaults", "openai")
    assert advised == answer("--temperature", 0.2, "--top-p", 0.9)
    assert openai == answer("--temperature", 1, "--top-p", 1) != advised


class Terminal:
    """A chat at a pty, as a person would have it."""

    def __init__(self, *arguments):
        self.process, self.master = None, None
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [QUIRE, "chat", *GREEDY, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(TERM="xterm"),
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # makes it the controlling terminal
        )
        os.close(slave)
        self.seen = ""

    def type(self, text):
        os.write(self.master, text.encode())

    def until(self, pattern, seconds=60):
        """Reads until the pattern is on the screen; gives what came up to its end."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self.master], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no {pattern!r} in {self.seen[-1000:]!r}"
            self.seen += os.read(self.master, 65536).decode(errors="replace")
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal():
    opened = []

    def opener(*arguments):
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield opener
    for one in opened:
        one.close()


PROMPT = re.escape("> ")


def test_a_conversation_at_a_terminal(terminal):
    screen = terminal("--max-tokens", "24")
    screen.until(PROMPT)
    screen.type("What color is the sun\x7f\x7fky?\n")
    screen.until(re.escape(SKY) + ".*\r\n")
    assert "blue" in screen.until(r"\r\n.*" + PROMPT)
    screen.type("/stats\n")
    screen.until("last answer: .* prompt tokens")
    screen.type("/quit\n")
    assert screen.process.wait(30) == 0


def test_ctrl_c_stops_an_answer_and_then_leaves(terminal):
    screen = terminal("--max-tokens", "4000", "--repetition-penalty", "1.3")
    screen.until(PROMPT)
    screen.type("Write a very long story about a fisherman.\n")
    screen.until(r"fisherman\.[^>]*\r\n[^>]*\w+ \w+ \w+")
    screen.type("\x03")
    screen.until(PROMPT)
    assert screen.process.poll() is None
    screen.type("\x03")
    assert screen.process.wait(30) == 0


def test_ctrl_c_clears_a_line_that_somebody_has_begun(terminal):
    screen = terminal("--max-tokens", "4")
    screen.until(PROMPT)
    screen.type("half a thou")
    screen.until("half a thou")
    screen.type("\x03")
    screen.until(PROMPT + "\r")  # an empty one
    screen.type("/nonsense\n")
    assert "half" not in screen.until("there is no /nonsense")
    screen.until(PROMPT)
    screen.type("\x03")
    assert screen.process.wait(30) == 0


def test_a_long_line_is_taken_whole(terminal):
    screen = terminal("--max-tokens", "4", "--context-length", "1024")
    screen.until(PROMPT)
    screen.type("\x1b[200~" + "word " * 2000 + "\nand more\x1b[201~")
    screen.type("\n")
    assert screen.until(r"this message takes (\d+) tokens")
    screen.until(PROMPT)
    screen.type("\x04")
    assert screen.process.wait(30) == 0


def test_ctrl_c_ends_a_chat_that_nobody_types():
    process = subprocess.Popen(
        [QUIRE, "chat", *GREEDY, "--max-tokens", "4000", "--repetition-penalty", "1.3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    process.stdin.write(b"Write a very long story about a fisherman.\n")
    process.stdin.flush()
    os.read(process.stdout.fileno(), 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
