"""A real Chromium, and the page in it as its user has it. Skips, and says why, where there is no Chromium."""

import contextlib
import json
import os
import shutil
import time

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install selenium")
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

# Runs before the page's own script: what the policy stopped, and what went wrong.
WITNESS = """
window.violations = [];
window.mishaps = [];
addEventListener("securitypolicyviolation", (e) => violations.push(`${e.violatedDirective} ${e.blockedURI}`));
addEventListener("error", (e) => mishaps.push(String(e.message)));
addEventListener("unhandledrejection", (e) => mishaps.push(String(e.reason)));
"""


def start_chromium():
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("no chromium with its chromedriver here (Debian has them as packages, Ubuntu only as a snap)")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    for argument in ("--headless=new", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium refuses root otherwise
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    started.set_page_load_timeout(60)
    started.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WITNESS})
    return started


@pytest.fixture(scope="session")
def chromium():
    driver = start_chromium()
    yield driver
    driver.quit()


class Page:
    """The page at one address, with nothing kept from before."""

    def __init__(self, driver, url):
        self.driver, self.url = driver, url
        self.size(1280, 860)
        self.media()
        driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "all"})
        driver.get("about:blank")
        driver.get_log("performance")  # what an earlier test left

    # ---- the browser

    def cdp(self, command, **arguments):
        return self.driver.execute_cdp_cmd(command, arguments)

    def size(self, width, height):
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, **features):
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": k, "value": v} for k, v in features.items()])

    def open(self):
        self.driver.get(self.url)
        return self

    def reload(self):
        """Chromium's driver can lose a reload on a busy machine and wait for its end in vain: then once more."""
        try:
            self.driver.refresh()
        except TimeoutException:
            self.driver.refresh()

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def requested(self):
        """The addresses of all requests since the last call."""
        events = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    # ---- what is on it

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def button(self, name, within=""):
        """The one that is shown and has this text or label."""
        named = lambda b: b.is_displayed() and name in (b.text, b.get_attribute("aria-label"))  # noqa: E731
        return self.until(lambda: next(filter(named, self.all(f"{within} button")), None), f"a button {name!r}")

    def shows(self, selector):
        return any(element.is_displayed() for element in self.all(selector))

    def text(self, selector):
        """Of the last such element."""
        return self.script("return [...document.querySelectorAll(arguments[0])].at(-1)?.innerText ?? ''", selector)

    def until(self, condition, what, seconds=10):
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(StaleElementReferenceException):
                if result := condition():
                    return result
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds} s: {what}; the page shows {self.text('body')[-1500:]!r}")
            time.sleep(0.02)

    # ---- what its user does

    def press(self, *keys):
        self.driver.switch_to.active_element.send_keys(*keys)

    def send(self, text):
        self.one("#prompt").send_keys(text.replace("\n", Keys.SHIFT + Keys.ENTER + Keys.NULL), Keys.ENTER)

    def growth(self, text, seconds=60):
        """Sends, and gives the lengths that the first answer had on its way, as the page itself saw them."""
        self.script("""
          const seen = window.lengths = [0];
          new MutationObserver(() => {
            const length = document.querySelector(".answer")?.textContent.length ?? 0;
            if (length !== seen.at(-1)) seen.push(length);
          }).observe(document.getElementById("log"), { childList: true, subtree: true });
        """)
        self.ask(text, seconds)
        return self.script("return lengths")

    def busy(self):
        return self.shows("#stop")

    def ask(self, text, seconds=60):
        """Sends, and waits for the end of the answer, which it gives."""
        count = len(self.all(".message"))
        self.send(text)
        self.until(lambda: len(self.all(".message")) == count + 2, "two more messages")
        self.until(lambda: not self.busy(), "the end of the answer", seconds)
        return self.answer()

    def answer(self):
        return self.text(".answer")

    def figures(self):
        return self.text(".message:last-child .figures")

    def failure(self):
        return self.until(lambda: self.text(".failure"), "a failure")

    def set(self, name, value):
        """A setting, as typed."""
        field = self.one(f'#settings [name="{name}"]')
        if field.tag_name != "select":
            field.clear()
        field.send_keys(value)


def checked(page):
    """Gives the page to a test; afterwards nothing was asked of another origin, the policy had nothing to stop, and no
    script failed."""
    yield page
    assert page.script("return violations") == []
    assert page.script("return mishaps") == []
    assert [url for url in page.requested() if not url.startswith((page.url, "data:"))] == []
