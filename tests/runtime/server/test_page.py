"""The page of the server: what is sent, and what a real browser makes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgedec import demo
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.server.page import page_routes
from edgedec.runtime.session import Session
from edgedec.runtime.speculation import SpecConfig
from tests.runtime.server.support.fake_session import ScriptedSession
from tests.runtime.server.support.serving import Served, serving
from tests.runtime.server.test_streaming import until
from tests.runtime.support.bench_exactness import Insistent
from tests.support.chromium import Page, chromium, find_chromium

SHIFT = 8  # modifier of a key in the DevTools protocol


def test_the_page_is_sent_without_a_key_and_may_run_its_own_code_only(served: Served) -> None:
    response = served.client.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "connect-src 'self'" in policy
    with serving(lambda: Session.open(demo.bundle_path(), threads=1), api_keys=("secret",)) as locked:
        assert locked.client.get("/").status_code == 200
        assert locked.client.get("/props").status_code == 401


def test_the_page_names_no_address() -> None:
    page = (Path(page_routes.__code__.co_filename).parent / "index.html").read_text("utf-8")
    assert re.findall(r"https?:|//[a-z]+\.|<link[^>]+href=\"(?!data:,)|src=", page) == []


@pytest.fixture(scope="module")
def speculating() -> Iterator[Served]:
    """Return a server with the embedded model and a drafter that is asked whether it pays or not."""
    spec = SpecConfig(drafter="ngram")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoregressive, "Adaptive", Insistent)
        with serving(lambda: Session.open(demo.bundle_path(), threads=1, ctx_size=1024, spec=spec)) as server:
            yield server


@pytest.fixture
def page(speculating: Served, tmp_path: Path) -> Iterator[Page]:
    with chromium(find_chromium(), tmp_path) as browser:
        browser.open(f"http://127.0.0.1:{speculating.port}/")
        yield browser


IDLE = "!document.getElementById('send').disabled"
TEXTS = "[...document.querySelectorAll('article .text')].map((one) => one.textContent)"


def ask(page: Page, text: str) -> None:
    page.run("document.getElementById('message').focus()")
    page.type(text)
    page.key("Enter", text="\r")


def set_option(page: Page, name: str, value: str) -> None:
    page.run(f"document.getElementById('{name}').value = '{value}'")


@pytest.mark.slow
def test_a_chat_with_streaming_retry_and_edit(page: Page) -> None:
    set_option(page, "temperature", "0")
    set_option(page, "max_tokens", "60")
    ask(page, "Tell me a story.")
    page.wait(f"{IDLE} && {TEXTS}.length === 2")
    question, first = page.run(TEXTS)
    assert question == "Tell me a story."
    assert len(first) > 40
    assert "tokens" in page.run("document.querySelector('.figures').textContent")
    assert page.run("document.getElementById('conversation').getAttribute('aria-busy')") == "false"
    page.wait("document.getElementById('memory').value > 0")
    assert re.fullmatch(r"[\d.]+ of [\d.]+ MiB", page.run("document.getElementById('memory-text').textContent"))
    assert "weights: " in page.run("document.getElementById('parts').textContent")

    page.run("document.getElementById('retry').click()")
    page.wait(f"{IDLE} && {TEXTS}.length === 2")
    assert page.run(TEXTS) == [question, first], "the same request has the same answer"

    page.run("document.querySelector('article button').click()")
    assert page.run(TEXTS) == []
    assert page.run("document.getElementById('message').value") == question
    assert page.run("document.activeElement.id") == "message"
    page.type(" And a song.")
    page.key("Enter", text="\r")
    page.wait(f"{IDLE} && {TEXTS}.length === 2")
    assert page.run(TEXTS)[0] == "Tell me a story. And a song."

    page.run("document.getElementById('clear').click()")
    assert page.run(TEXTS) == []
    assert page.complaints == []


@pytest.mark.slow
def test_escape_stops_an_answer_whose_text_stays(page: Page, controlled: Served, script: ScriptedSession) -> None:
    page.open(f"http://127.0.0.1:{controlled.port}/")
    script.steps.release(4)  # the prompt and three tokens
    ask(page, "Hello")
    page.wait(f"{TEXTS}[1] === '0.0 0.1 0.2 '")
    assert page.run("document.getElementById('conversation').getAttribute('aria-busy')") == "true"
    page.key("Escape")
    page.wait(IDLE)
    until(lambda: script.answers[0].stop_reason == "interrupted")
    assert page.run("document.getElementById('speed').textContent") == "Stopped"
    assert page.run(TEXTS) == ["Hello", "0.0 0.1 0.2 "]
    assert page.run("document.getElementById('alert').textContent") == ""


@pytest.mark.slow
def test_accepted_guesses_are_marked(page: Page) -> None:
    set_option(page, "temperature", "0")
    set_option(page, "max_tokens", "60")
    for count in (2, 4):  # the second answer repeats parts of the first
        ask(page, "Tell me a story.")
        page.wait(f"{IDLE} && {TEXTS}.length === {count}")
    accepted = page.run(
        "/(\\d+) of \\d+ guesses accepted/.exec([...document.querySelectorAll('.figures')][1].textContent)[1]"
    )
    marked = page.run("document.querySelectorAll('article:last-child .guessed').length")
    assert 0 < marked <= int(accepted)


@pytest.mark.slow
def test_errors_are_shown_and_the_message_can_be_sent_again(page: Page) -> None:
    set_option(page, "temperature", "-3")
    ask(page, "Hello")
    page.wait(f"{IDLE} && document.getElementById('alert').textContent !== ''")
    assert "temperature" in page.run("document.getElementById('alert').textContent")
    assert page.run(TEXTS) == ["Hello"]
    set_option(page, "temperature", "0")
    set_option(page, "max_tokens", "5")
    page.run("document.getElementById('retry').click()")
    page.wait(f"{IDLE} && {TEXTS}.length === 2")
    assert page.run("document.getElementById('alert').textContent") == ""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_fits_the_screen_and_is_readable_in_both_schemes(page: Page, width: int, scheme: str) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=640, deviceScaleFactor=1, mobile=width < 500)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    set_option(page, "max_tokens", "20")
    page.run("document.querySelector('form details').open = true")
    ask(page, "x" * 300)
    page.wait(f"{IDLE} && {TEXTS}.length === 2")
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth")
    contrast = """(() => {
      const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map((value) => {
        const part = value / 255;
        return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
      }).reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
      const ratio = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
      const style = (selector) => getComputedStyle(document.querySelector(selector));
      const probe = document.createElement('span');
      probe.className = 'guessed';
      document.body.append(probe);
      return [
        ratio(light(style('body').color), light(style('body').backgroundColor)),
        ratio(light(style('article.user').color), light(style('article.user').backgroundColor)),
        ratio(light(style('button.strong').color), light(style('button.strong').backgroundColor)),
        ratio(light(style('.guessed').color), light(style('.guessed').backgroundColor)),
        ratio(light(style('#alert').color), light(style('body').backgroundColor)),
      ];
    })()"""
    assert min(page.run(contrast)) >= 4.5, "WCAG 2.2 asks for 4.5"


@pytest.mark.slow
def test_keyboard_and_screen_reader(page: Page) -> None:
    set_option(page, "max_tokens", "5")
    assert page.run("document.activeElement.id") == "message"
    page.type("a")
    page.key("Enter", text="\r", modifiers=SHIFT)
    page.type("b")
    assert page.run("document.getElementById('message').value") == "a\nb"
    page.key("Enter", text="\r")
    page.wait(f"{IDLE} && {TEXTS}.length === 2")
    page.run("document.querySelector('form details').open = true")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
    ]
    controls = {"textbox", "button", "spinbutton", "checkbox", "meter", "log"}
    assert [role for role, name in named if role in controls and not name] == []
    roles = {role for role, _ in named}
    assert controls <= roles
    order = []
    page.run("document.getElementById('message').focus()")
    for _ in range(4):
        page.key("Tab")
        order.append(page.run("document.activeElement.id || document.activeElement.tagName"))
    assert order == ["send", "retry", "clear", "SUMMARY"]
