"""The page at / in a real Chromium, against a server that plays what the test says. test_page_served.py has the
essentials against `quire serve`. After every test: nothing was asked of another origin, the policy had nothing to
stop, no script failed."""

import json
import re
import time

import pytest
from browser import Keys, Page, checked, chromium  # noqa: F401
from fake_server import FakeServer


@pytest.fixture
def server():
    fake = FakeServer()
    yield fake
    fake.close()


@pytest.fixture
def page(chromium, server):  # noqa: F811
    yield from checked(Page(chromium, server.url).open())


# ---- asking and answering


def test_an_answer_grows_as_it_comes_and_ends_with_its_figures(page, server):
    server.answer, server.pace = "word " * 40, 0.02
    page.until(lambda: page.text("#model") == "fake-model", "the model's name")
    lengths = page.growth("Hello?")
    assert lengths == sorted(lengths) and len(lengths) > 5
    assert page.text(".user .body") == "Hello?"
    assert page.answer() == ("word " * 40).strip()
    expected = r"[\d.]+ tokens/s · first token after [\d.]+ m?s · 4\d tokens · prompt 20, 16 cached"
    assert re.fullmatch(expected, page.figures()), page.figures()
    (request,) = server.requests
    assert request == {
        "model": "fake-model",
        "messages": [{"role": "user", "content": "Hello?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize("cut, line_end", [(1, b"\n"), (7, b"\n"), (64, b"\n"), (1, b"\r\n"), (2, b"\r")])
def test_the_stream_may_be_cut_anywhere(page, server, cut, line_end):
    server.answer, server.cut, server.line_end = "Grüße, 世界 👩‍🚀 — “quotes” and\nlines", cut, line_end
    assert page.ask("Hi") == server.answer


def test_reasoning_is_folded_away(page, server):
    page.ask("Hi")
    assert not page.one(".thought").is_displayed()
    server.thought = "<b>Blue</b>,\nI think."
    assert page.ask("And?") == "The sky is blue."
    folded = page.all(".thought")[1]
    assert folded.text == "Reasoning"
    folded.find_element("tag name", "summary").click()
    assert folded.text == "Reasoning\n<b>Blue</b>,\nI think."
    assert server.requests[1]["messages"][1] == {"role": "assistant", "content": "The sky is blue."}


def test_the_whole_conversation_is_sent(page, server):
    page.ask("One")
    page.set("system", "Be brief.")
    page.ask("Two")
    assert [(m["role"], m["content"]) for m in server.requests[1]["messages"]] == [
        ("system", "Be brief."),
        ("user", "One"),
        ("assistant", "The sky is blue."),
        ("user", "Two"),
    ]


def test_stop_ends_the_answer_and_the_server_sees_it(page, server):
    server.answer, server.pace = "word " * 500, 0.02
    page.send("Go on forever")
    page.until(lambda: "word" in page.answer(), "the first word")
    page.one("#stop").click()
    page.until(lambda: not page.busy(), "the end", 2)
    assert server.gone.wait(3)
    assert page.answer().startswith("word")
    assert re.match(r"stopped · (first token after \d+ ms · )?about ", page.figures())  # which it may have seen
    assert page.script("return document.activeElement.id") == "prompt"
    server.answer, server.pace = "Here I am.", 0
    assert page.ask("And now?") == "Here I am."


def test_escape_stops_too(page, server):
    server.answer, server.pace = "word " * 500, 0.02
    page.send("Go on forever")
    page.until(lambda: "word" in page.answer(), "the first word")
    page.press(Keys.ESCAPE)
    page.until(lambda: not page.busy(), "the end", 2)
    assert server.gone.wait(3)


def test_an_answer_that_hit_the_limit_says_so(page, server):
    server.reason = "length"
    page.ask("Hi")
    assert page.figures().startswith("cut off at the token limit")


def test_regenerate_asks_the_same_again(page, server):
    page.ask("Hi")
    server.answer = "It is grey today."
    page.button("Regenerate").click()
    page.until(lambda: page.answer() == "It is grey today.", "the other answer")
    assert len(page.all(".message")) == 2
    assert server.requests[0] == server.requests[1]


def test_the_last_message_is_edited_in_place(page, server):
    page.ask("Hi")
    page.button("Edit").click()
    page.press(" there", Keys.ENTER)
    page.until(lambda: len(server.requests) == 2 and not page.busy(), "another answer")
    assert server.requests[1]["messages"] == [{"role": "user", "content": "Hi there"}]
    assert len(page.all(".message")) == 2 and len(page.all("#chats li")) == 1


def test_an_edit_of_an_earlier_message_keeps_the_chat_it_came_from(page, server):
    page.ask("One")
    page.ask("Two")
    page.all(".edit")[0].click()
    page.press(Keys.BACKSPACE * 3, "Another", Keys.ENTER)
    page.until(lambda: len(server.requests) == 3 and not page.busy(), "another answer")
    assert server.requests[2]["messages"] == [{"role": "user", "content": "Another"}]
    assert [entry.text for entry in page.all("#chats .pick")] == ["Another", "One"]
    page.all("#chats .pick")[1].click()
    assert [body.text for body in page.all(".user .body")] == ["One", "Two"]


def test_an_edit_can_be_given_up(page, server):
    page.ask("Hi")
    page.button("Edit").click()
    page.press(" there", Keys.ESCAPE)
    assert page.text(".user .body") == "Hi" and not page.all(".editor")
    assert page.script("return document.activeElement.innerText") == "Edit"
    assert len(server.requests) == 1


def test_copy_takes_the_text_as_it_was_written(page, server):
    origin = server.url.rstrip("/")
    page.cdp("Browser.grantPermissions", origin=origin, permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    server.answer = "Some **bold** text."
    page.ask("Hi")
    page.button("Copy", ".message:last-child").click()
    page.until(lambda: "Copied" in page.text(".message:last-child .actions"), "that it is copied")
    read = "navigator.clipboard.readText().then(arguments[arguments.length - 1])"
    assert page.driver.execute_async_script(read) == "Some **bold** text."


# ---- settings


def test_settings_are_sent_as_numbers_and_only_when_given(page, server):
    given = {"temperature": 0.7, "max_tokens": 99, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 7}
    given |= {"frequency_penalty": -0.5, "presence_penalty": 0.5, "repetition_penalty": 1.1}
    for name, value in given.items():
        page.set(name, str(value))
    page.set("stop", "END\nSTOP HERE")
    page.ask("Hi")
    known = {"model", "messages", "stream", "stream_options"}
    expected = {**given, "stop": ["END", "STOP HERE"]}
    assert {name: value for name, value in server.requests[0].items() if name not in known} == expected
    page.button("Reset settings").click()
    page.ask("Hi")
    assert set(server.requests[1]) == known


def test_json_by_a_schema_is_asked_for_and_shown_as_code(page, server):
    page.set("format", "JSON by a schema")
    page.set("schema", '{"type": "object"}')
    server.answer = '{"a": "*not* bold"}'
    page.ask("Hi")
    schema = {"name": "answer", "strict": True, "schema": {"type": "object"}}
    assert server.requests[0]["response_format"] == {"type": "json_schema", "json_schema": schema}
    assert page.text(".answer pre") == server.answer and not page.all(".answer em")
    page.set("format", "Any JSON object")
    page.ask("Hi")
    assert server.requests[1]["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize("name, value", [("temperature", "-1"), ("top_k", "1.5"), ("schema", "{not JSON")])
def test_a_setting_that_cannot_be_sent_is_pointed_at(page, server, name, value):
    page.set("format", "JSON by a schema")
    page.set("schema", "{}")
    page.set(name, value)
    page.send("Hi")
    assert page.script("return document.activeElement.name") == name
    assert page.one("#prompt").get_attribute("value") == "Hi"
    assert server.requests == [] and not page.all(".message")


# ---- errors


def test_a_busy_server_says_when_to_come_back(page, server):
    server.refusal = (503, "the queue is full", {"Retry-After": "3"})
    page.send("Hi")
    assert page.failure() == "The server is busy.\nIt says: “the queue is full”. Try again in 3 seconds."
    server.refusal = None
    page.button("Try again").click()
    page.until(lambda: page.answer() == "The sky is blue.", "the answer")
    assert not page.all(".failure") and len(page.all(".message")) == 2


REFUSALS = {400: "The server refused this request.", 429: "The server is busy.", 500: "The server failed."}


@pytest.mark.parametrize("status, title", REFUSALS.items())
def test_the_servers_own_words_are_shown(page, server, status, title):
    server.refusal = (status, "top_k: expected <b>more</b>", {})
    page.send("Hi")
    failure = page.failure()
    assert failure.startswith(title) and "top_k: expected <b>more</b>" in failure


def test_a_failed_turn_is_left_out_of_the_next(page, server):
    server.refusal = (500, "oops", {})
    page.ask("One")
    server.refusal = None
    page.ask("Two")
    assert server.requests[1]["messages"] == [{"role": "user", "content": "One\n\nTwo"}]


def test_a_server_that_is_gone(page, server):
    page.ask("Hi")
    server.close()
    page.send("Still there?")
    assert page.failure().startswith("No connection to the server.\nIs it still running at http://127.0.0.1:")
    page.until(lambda: "No connection" in page.text("#live-note"), "the live view to notice")
    assert not page.busy()


def test_a_connection_that_breaks_keeps_what_came(page, server):
    server.answer, server.break_after, server.pace = "one two three four", 2, 0.1
    page.send("Count")
    assert page.failure().startswith("No connection to the server.")
    assert page.answer() == "one two"


def test_an_error_inside_the_stream(page, server):
    server.error_at_end = "the engine stopped"
    page.send("Hi")
    assert page.failure() == "The server failed.\nIt says: “the engine stopped”."
    assert page.answer() == "The sky is blue."


def test_a_model_that_is_still_loading_is_waited_for(page, server):
    server.loading = True
    page.reload()
    page.until(lambda: page.text("#model") == "the model is loading…", "that it loads")
    server.loading = False
    page.until(lambda: page.text("#model") == "fake-model", "its name")


# ---- keys


def give_key(page, key):
    page.until(lambda: page.shows("#key-dialog"), "the dialog")
    page.press(key, Keys.ENTER)


@pytest.fixture
def locked(chromium, server):  # noqa: F811
    server.api_key = "secret"
    yield from checked(Page(chromium, server.url).open())


def test_a_server_with_a_key_asks_for_it_until_it_is_right(locked, server):
    give_key(locked, "wrong")
    locked.until(lambda: "did not accept" in locked.text("#key-why"), "the second try")
    give_key(locked, "secret")
    locked.until(lambda: locked.text("#model") == "fake-model", "the model's name")
    assert locked.ask("Hi") == "The sky is blue."
    assert "$QUIRE_API_KEY" in locked.script("return document.getElementById('snippets').textContent")
    assert "secret" not in locked.script("return document.documentElement.outerHTML")
    assert locked.script("return JSON.stringify(localStorage)").count("secret") == 0
    locked.reload()
    locked.until(lambda: locked.text("#model") == "fake-model", "the key of this tab")


def test_a_key_is_remembered_on_request_only(locked):
    locked.until(lambda: locked.shows("#key-dialog"), "the dialog")
    locked.one("#remember").click()
    locked.one("#key").click()
    give_key(locked, "secret")
    locked.until(lambda: locked.text("#model") == "fake-model", "the model's name")
    locked.script("sessionStorage.clear()")
    locked.reload()
    locked.until(lambda: locked.text("#model") == "fake-model", "the key from before")


def test_without_the_key_it_says_what_is_missing(locked):
    locked.until(lambda: locked.shows("#key-dialog"), "the dialog")
    locked.press(Keys.ESCAPE)
    locked.until(lambda: locked.text("#model") == "no key given", "that there is no key")
    locked.send("Hi")
    locked.until(lambda: locked.shows("#key-dialog"), "the dialog again")
    locked.button("Cancel", "#key-dialog").click()
    assert locked.failure().startswith("The server wants a key.")


def test_metrics_may_have_a_key_of_their_own(page, server):
    server.metrics_key = "other"
    page.until(lambda: "want a key" in page.text("#live-note"), "the note")
    assert page.ask("Hi") == "The sky is blue."
    page.button("Give the key").click()
    give_key(page, "other")
    page.until(lambda: page.text("#tiles dd").endswith("25 %"), "the numbers")


# ---- what is kept


def test_a_reload_keeps_the_chat_and_the_settings(page, server):
    server.answer = "Some **bold** text."
    page.set("temperature", "0.5")
    page.ask("Hi")
    figures = page.figures()
    page.reload()
    assert page.answer() == "Some bold text." and page.text(".user .body") == "Hi" and page.figures() == figures
    page.ask("More")
    assert server.requests[1]["temperature"] == 0.5 and len(server.requests[1]["messages"]) == 3


def test_a_reload_in_the_middle_keeps_what_came(page, server):
    server.answer, server.pace = "word " * 500, 0.02
    page.send("Go on forever")
    page.until(lambda: page.answer().count("word") > 5, "some words")
    page.reload()
    assert page.answer().count("word") > 5 and "interrupted" in page.figures()
    assert server.gone.wait(3) and not page.busy()


def test_chats_are_listed_opened_and_deleted(page):
    page.ask("First")
    page.button("New chat").click()
    assert page.shows("#welcome") and not page.all(".message")
    page.ask("Second")
    assert [entry.text for entry in page.all("#chats .pick")] == ["Second", "First"]
    page.button("First").click()
    assert page.text(".user .body") == "First"
    page.button("Delete chat: Second").click()
    assert [entry.text for entry in page.all("#chats .pick")] == ["First"]
    page.button("Delete all chats").click()
    page.driver.switch_to.alert.accept()
    assert page.shows("#welcome") and not page.all("#chats li")
    page.reload()
    assert page.shows("#welcome") and not page.all("#chats li")


def test_deleting_a_chat_that_is_being_answered_deletes_it(page, server):
    server.answer, server.pace = "word " * 500, 0.02
    page.send("Go on")
    page.until(lambda: "word" in page.answer(), "the first word")
    page.button("Delete chat: Go on").click()
    assert server.gone.wait(3)
    page.until(lambda: not page.busy(), "the end")
    page.reload()
    assert page.shows("#welcome") and not page.all("#chats li")


def test_a_browser_that_keeps_nothing_is_good_enough(page):
    forbid = "Object.defineProperty(window, '{}', { get() { throw new DOMException('no', 'SecurityError'); } });"
    source = "".join(forbid.replace("{}", name) for name in ("localStorage", "sessionStorage"))
    added = page.cdp("Page.addScriptToEvaluateOnNewDocument", source=source)
    page.reload()
    page.cdp("Page.removeScriptToEvaluateOnNewDocument", **added)
    assert page.ask("Hi") == "The sky is blue."
    page.button("New chat").click()
    assert page.shows("#welcome") and not page.all("#chats li")


def test_when_the_room_is_used_up_the_oldest_chat_goes(page):
    page.ask("Oldest")
    page.script("""
      const chat = JSON.parse(localStorage.getItem(Object.keys(localStorage).find((n) => n.startsWith("quire.chat."))));
      for (let i = 0, size = 1 << 20; size > 4; i++) {
        try { localStorage.setItem(`quire.chat.1-${i}`, JSON.stringify({ ...chat, more: "x".repeat(size) })); }
        catch { size = size >> 1; }
      }
    """)
    before = page.script("return Object.keys(localStorage).length")
    page.button("New chat").click()
    page.ask("Newest " + "y" * 200)
    page.reload()
    assert page.text(".user .body").startswith("Newest") and page.answer() == "The sky is blue."
    assert page.script("return Object.keys(localStorage).length") <= before


# ---- what models write


MARKDOWN = """# Title

Some **bold**, *italic*, ***both***, ~~gone~~, `a * b`, snake_case_name and 2 * 3 * 4.
Second line, [a link](https://example.org/a_(b)) and https://example.org/bare.

1. one
   - inner
   - `code`
2. two

> quoted
> > deeper

~~~
plain
~~~

```python
if a < b and "**":
    pass
```

| a | b |
|---|:-:|
| 1 | **2** |

---
\\*escaped\\*"""


def test_markdown_becomes_what_it_means(page, server):
    server.answer, server.pace = MARKDOWN, 0.001
    page.ask("Hi")
    texts = lambda selector: [node.text for node in page.all(f".answer {selector}")]  # noqa: E731
    assert texts("h3") == ["Title"]
    assert texts("strong") == ["bold", "both", "2"] and texts("strong em") == ["both"] and texts("p > em") == ["italic"]
    assert texts("del") == ["gone"] and texts("p code") == ["a * b"]
    assert "snake_case_name and 2 * 3 * 4.\nSecond line" in texts("p")[0]
    assert [a.get_attribute("href") for a in page.all(".answer a")] == [
        "https://example.org/a_(b)",
        "https://example.org/bare",
    ]
    assert len(texts("> ol > li")) == 2 and texts("ol ul li") == ["inner", "code"]
    assert texts("blockquote blockquote") == ["deeper"]
    assert texts("pre") == ["plain", 'if a < b and "**":\n    pass']
    assert texts("th") == ["a", "b"] and texts("td") == ["1", "2"]
    assert len(page.all(".answer hr")) == 1 and texts("p")[-1] == "*escaped*"


HOSTILE = """<script>window.taken = 1</script> <img src=x onerror="window.taken = 2">
[click](javascript:window.taken=3) [me](data:text/html,x) ![image](https://example.org/image.png)
[relative](/v1/models) <a href="javascript:window.taken=4">a</a> **<b onclick=x>**

```"><script>window.taken = 5</script>
</code></pre><script>window.taken = 6</script>
```"""


def test_what_a_model_writes_stays_text(page, server):
    server.answer = HOSTILE
    page.ask(HOSTILE)
    assert page.script("return window.taken") is None
    assert not page.all(".answer script, .answer img, .answer b, .message [onclick], .message [onerror]")
    assert [a.get_attribute("href") for a in page.all(".message a")] == ["https://example.org/image.png"]
    assert "<script>window.taken = 1</script>" in page.answer()
    assert page.text(".user .body") == HOSTILE


@pytest.mark.parametrize("unit", [">", "*", "**a ", "[", "`", "- ", "  - a\n", "|", "\\", "_a", "~~", "#", "1. ", "<"])
def test_no_text_is_slow_to_show(page, server, unit):
    server.answer = unit * 3000 + "end"
    started = time.monotonic()
    page.ask("Hi")
    assert time.monotonic() - started < 8
    assert "end" in page.answer()


def test_a_long_answer_is_followed_only_at_the_end(page, server):
    server.answer, server.pace = "A line.\n\n" * 150, 0.01
    page.send("Write")
    below = "const s = document.getElementById('scroller'); return s.scrollHeight - s.scrollTop - s.clientHeight"
    page.until(lambda: page.script("return document.getElementById('scroller').scrollTop") > 200, "it to follow")
    page.script("document.getElementById('scroller').scrollTop = 50")
    page.until(lambda: page.shows("#to-end"), "the way back to be offered")
    page.until(lambda: not page.busy(), "the end")
    assert page.script("return document.getElementById('scroller').scrollTop") == 50
    page.one("#to-end").click()
    assert page.script(below) < 2
    page.until(lambda: not page.shows("#to-end"), "the offer to go")


def test_right_to_left_text_runs_right_to_left(page, server):
    server.answer = "السماء زرقاء.\n\nThe sky is blue.\n\n- السماء\n\n> السماء\n\n```\nالسماء\n```"
    page.size(360, 640)
    page.ask("ما لون السماء؟")
    direction = "return [...document.querySelectorAll(arguments[0])].map((n) => getComputedStyle(n).direction)"
    assert page.script(direction, ".answer > p") == ["rtl", "ltr"]
    assert page.script(direction, ".user .body, .answer ul, .answer li, .answer blockquote") == ["rtl"] * 4
    assert page.script(direction, ".answer pre") == ["ltr"]
    assert sideways(page, "#scroller") == 0


# ---- the live view


def test_the_live_view_shows_the_servers_numbers(page):
    page.until(lambda: page.all("#tiles .curve[d]"), "the first sample")
    shown = page.script("return Object.fromEntries([...document.querySelectorAll('.tile')].map((t) => "
                        "[t.querySelector('dt').innerText, t.querySelector('dd').innerText.trim()]))")
    assert shown == {
        "Running": "3",
        "Queue": "2",
        "Tokens/s": "41.5",
        "Cache hits": "75 %",
        "Page pool": "16,384 of 65,536 tokens 25 %",
        "Drafts": "60 % come true; tokens a step 2.50",
    }
    assert "12,000 prompt tokens, 9,000 of them from the cache; 3,456 generated" in page.text("#live-note")
    points = lambda: page.one("#tiles .curve").get_attribute("d").count("L")  # noqa: E731
    page.until(lambda: points() >= 2, "three samples")


def test_nothing_is_asked_while_nobody_looks(page):
    page.until(lambda: page.all("#tiles .curve[d]"), "the first sample")
    page.one("#live summary").click()
    page.requested()
    time.sleep(2.2)
    assert [url for url in page.requested() if url.endswith("/metrics")] == []


# ---- looks


def luminance(color):
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


COLORS = """
const solid = (n) => { for (; n; n = n.parentElement) { const c = getComputedStyle(n).backgroundColor;
  if (!/, 0\\)$/.test(c) && c !== "transparent") return c; } };
return [...document.querySelectorAll("body *")].filter((n) => n.checkVisibility() &&
  [...n.childNodes].some((c) => c.nodeType === 3 && c.data.trim()))
  .map((n) => [n.innerText, getComputedStyle(n).color, solid(n)]);
"""


def theme_of(page):
    dark = luminance(page.script("return getComputedStyle(document.documentElement).backgroundColor")) < 0.2
    return "dark" if dark else "light"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_are_readable(page, server, scheme):
    page.media(**{"prefers-color-scheme": scheme})
    server.answer = MARKDOWN
    page.ask("Hi")
    server.refusal = (503, "busy", {})
    page.ask("Hi")
    assert theme_of(page) == scheme
    colors = page.script(COLORS)
    assert len(colors) > 40
    assert [entry for entry in colors if contrast(entry[1], entry[2]) < 4.5] == []


def test_the_theme_can_be_chosen_and_stays(page):
    page.media(**{"prefers-color-scheme": "light"})
    page.button("Colours: as the system").click()
    page.button("Colours: light").click()
    assert theme_of(page) == "dark" and page.button("Colours: dark")
    page.reload()
    assert theme_of(page) == "dark"


def sideways(page, selector):
    return page.script("const n = document.querySelector(arguments[0]); return n.scrollWidth - n.clientWidth", selector)


@pytest.mark.parametrize("width", [320, 360])
def test_a_phone_shows_everything_without_scrolling_sideways(page, server, width):
    page.size(width, 640)
    page.reload()
    assert sideways(page, "html") == 0 and not page.shows("#panel")
    server.answer = MARKDOWN + "\n\n" + "x" * 300 + "\n\n|" + "wide cell|" * 20 + "\n|" + "---|" * 20
    page.ask("y" * 300)
    assert sideways(page, "html") == 0 and sideways(page, "#scroller") == 0
    page.one("#panel-toggle").click()
    assert page.shows("#panel") and page.script("return document.querySelector('main').inert")
    assert sideways(page, "html") == 0 and sideways(page, "#panel") == 0
    page.press(Keys.ESCAPE)
    assert not page.shows("#panel") and page.script("return document.activeElement.id") == "panel-toggle"
    assert page.one("#prompt").is_displayed()


def test_nothing_moves_for_those_who_asked_for_it(page, server):
    page.media(**{"prefers-reduced-motion": "reduce"})
    server.answer, server.pace = "word " * 100, 0.02
    page.send("Hi")
    page.until(lambda: page.all(".streaming"), "the answer")
    cursor = "return getComputedStyle(document.querySelector('.streaming .body'), '::after').animationName"
    assert page.script(cursor) == "none"
    page.press(Keys.ESCAPE)


# ---- access


def focused(page):
    """The name of what has the focus; "" between the end of the page and its beginning."""
    return page.script("""
      const now = document.activeElement;
      return now === document.body ? "" : now.id || now.name || now.ariaLabel || now.innerText;
    """)


def test_everything_works_by_keyboard(page, server):
    page.script("document.activeElement.blur()")
    page.one("body").send_keys(Keys.TAB)
    assert page.script("return document.activeElement.className") == "skip"
    page.press(Keys.ENTER)
    assert focused(page) == "prompt"
    page.press("one", Keys.SHIFT + Keys.ENTER + Keys.NULL, "two", Keys.ENTER)
    page.until(lambda: server.requests and not page.busy(), "the answer")
    assert server.requests[0]["messages"][0]["content"] == "one\ntwo"
    order = []
    while (name := focused(page)) != "prompt" or not order:
        order += [name] if name else []
        assert len(order) < 60
        page.press(Keys.TAB)
    assert order == [
        *("prompt", "send", "Live", "Chats", "one two", "Delete chat: one two", "clear", "Settings", "system"),
        *("temperature", "max_tokens", "top_p", "top_k", "min_p", "seed"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "stop", "format", "reset", "change-key"),
        *("Skip to the message field", "new-chat", "theme", "panel-toggle", "scroller"),
        *("Copy", "Edit", "Copy", "Regenerate"),
    ]


def test_focus_can_be_seen(page):
    page.one("#theme").send_keys("")
    page.press(Keys.TAB)
    style = "const s = getComputedStyle(document.activeElement); return [s.outlineStyle, parseFloat(s.outlineWidth)]"
    assert page.script(style) == ["solid", 2]


CONTROLS = {"button", "textbox", "checkbox", "combobox", "spinbutton", "link", "DisclosureTriangle", "searchbox"}
LANDMARKS = {"banner", "main", "complementary", "log", "status", "region", "form", "article"}


def test_every_control_has_a_name_and_the_page_its_landmarks(page):
    page.ask("Hi")
    page.cdp("Accessibility.enable")
    nodes = [node for node in page.cdp("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes]
    page.cdp("Accessibility.disable")
    controls = [(role, name) for role, name in named if role in CONTROLS]
    assert len(controls) > 20
    assert [control for control in controls if not control[1].strip()] == []
    assert LANDMARKS - {role for role, _ in named} == set()


def test_a_screen_reader_hears_the_end_of_an_answer_and_not_each_token(page, server):
    server.answer, server.pace = "word " * 20, 0.01
    page.script("""
      window.heard = [];
      const status = document.getElementById("status");
      new MutationObserver(() => heard.push(status.textContent)).observe(status, { childList: true });
    """)
    page.ask("Hi")
    assert page.script("return heard") == ["Answering", "Answer: " + server.answer.strip()]
    assert page.one("#log").get_attribute("aria-live") == "off"
    assert page.one("#log").get_attribute("aria-busy") == "false"


def test_an_empty_page_explains_itself(page, server):
    page.until(lambda: "fake-model" in page.text("#snippets pre"), "the model's name")
    snippets = [node.text for node in page.all("#snippets pre")]
    assert server.url + "v1/chat/completions" in snippets[0] and f'base_url="{server.url}v1"' in snippets[1]
    body = re.search(r"-d '(.*)'", snippets[0])[1]
    assert json.loads(body)["model"] == "fake-model"
    compile(snippets[1], "snippet", "exec")
    examples = page.all("#examples button")
    assert len(examples) == 3
    text = examples[0].text
    examples[0].click()
    page.until(lambda: server.requests, "the question")
    assert server.requests[0]["messages"] == [{"role": "user", "content": text}]
