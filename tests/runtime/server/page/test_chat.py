"""A chat in a real browser: with the model, and with answers that the test writes."""

from __future__ import annotations

import re

import pytest

from edgedec.bundle.embedded import ABOUT, EXAMPLES
from tests.runtime.server.support.chat_page import ChatPage
from tests.runtime.server.support.fake_session import ScriptedSession
from tests.runtime.server.support.serving import Served, serving
from tests.runtime.server.test_streaming import until
from tests.support.chromium import Page

STORY = "Tell me a story."


@pytest.mark.thorough
def test_a_chat_with_the_model_survives_a_reload(page: ChatPage) -> None:
    page.set_option("temperature", "0")
    page.set_option("max_tokens", "60")
    page.ask(STORY)
    page.wait_answers(1)
    question, first = page.texts
    assert question == STORY
    assert len(first) > 40
    assert "60 tokens" in page.text(".figures")
    assert "limit of tokens" in page.text(".figures")
    assert page.run("document.getElementById('conversation').getAttribute('aria-busy')") == "false"
    page.wait("document.getElementById('memory').value > 0")
    assert re.fullmatch(
        r"No memory budget: [\d.]+ MiB used of the [\d.]+ MiB that are planned", page.text("#memory-text")
    )
    assert "weights: " in page.text("#parts")
    page.reload()
    assert page.texts == [question, first]
    page.wait("document.getElementById('model').textContent === 'a model'")
    page.press("#new")
    assert page.texts == []
    page.reload()
    assert page.texts == [], "a reload shows what was shown"
    assert [len(one["messages"]) for one in page.stored()] == [2]
    assert page.complaints == []


@pytest.mark.thorough
def test_an_empty_chat_says_what_the_model_is_and_offers_examples(page: ChatPage) -> None:
    page.wait("document.querySelectorAll('#examples button').length")
    assert page.text("#about") == f"This is {ABOUT['demo']}. A conversation may have 1024 tokens."
    names = page.run("[...document.querySelectorAll('#examples button')].map((one) => one.textContent)")
    assert names == list(EXAMPLES)
    page.script()
    page.run("document.querySelector('#examples button').click()")
    page.wait("asked.length === 1")
    assert page.run("asked[0].messages") == [{"role": "user", "content": EXAMPLES[0]}]
    assert page.run("document.getElementById('empty').hidden") is True
    page.run("finish()")
    placeholders = page.run(
        "[...document.querySelectorAll('#options input[type=number]')].map((one) => one.placeholder)"
    )
    assert placeholders == ["0.8", "40", "0.95", "0.05", "1", "no limit", "random"]


@pytest.mark.thorough
def test_escape_stops_an_answer_whose_text_stays(browser: Page, controlled: Served, script: ScriptedSession) -> None:
    page = ChatPage.fresh(browser, controlled.port)
    script.steps.release(4)  # the prompt and three tokens
    page.ask("Hello")
    page.wait(f"{page.TEXTS}[1] === '0.0 0.1 0.2'")
    assert page.run("document.getElementById('conversation').getAttribute('aria-busy')") == "true"
    page.key("Escape")
    page.wait(page.IDLE)
    until(lambda: script.answers[0].stop_reason == "interrupted")
    assert page.text("#notice") == "Stopped"
    assert page.texts == ["Hello", "0.0 0.1 0.2"]
    assert page.text("#alert") == ""
    assert page.stored()[0]["messages"][1]["content"] == "0.0 0.1 0.2 ", "the raw text is what is stored"


@pytest.mark.thorough
def test_accepted_guesses_are_marked(page: ChatPage) -> None:
    page.set_option("temperature", "0")
    page.set_option("max_tokens", "60")
    for count in (1, 2):  # the second answer repeats parts of the first
        page.ask(STORY)
        page.wait_answers(count)
    accepted = page.run(
        "/(\\d+) of \\d+ guesses accepted/.exec([...document.querySelectorAll('.figures')][1].textContent)[1]"
    )
    counted = "document.querySelectorAll('article:last-child .guessed').length"
    assert 0 < page.run(counted) <= int(accepted)
    texts = page.texts
    page.run("document.getElementById('colour').click()")
    assert page.run(counted) == 0
    assert page.texts == texts


@pytest.mark.thorough
def test_reasoning_is_folded_kept_and_not_sent_again(page: ChatPage) -> None:
    page.script()
    page.ask("one")
    page.wait("asked.length === 1")
    page.run("delta({reasoning_content: 'Let me <b>see</b>'})")
    page.wait("document.querySelector('.thoughts').textContent === 'Let me <b>see</b>'")
    assert page.run("document.querySelector('.thinking').open") is False
    page.run("delta({reasoning_content: '.'}); delta({content: '1'}); finish()")
    page.wait(page.IDLE)
    page.reload()
    assert page.text(".thoughts") == "Let me <b>see</b>."
    assert page.texts == ["one", "1"]
    page.script()
    page.ask("two")
    page.wait("asked.length === 1")
    assert page.run("asked[0].messages[1]") == {"role": "assistant", "content": "1"}
    page.run("finish()")


@pytest.mark.thorough
def test_a_key_is_asked_for_in_a_field(browser: Page) -> None:
    with serving(lambda: ScriptedSession().real, api_keys=("secret",)) as locked:
        page = ChatPage.fresh(browser, locked.port)
        page.wait("!document.getElementById('key-panel').hidden")
        assert "API key" in page.text("#alert")
        assert page.run("document.getElementById('key').type") == "password"
        assert page.text("#key-place").startswith("The key is kept in the storage of this tab, until the tab is closed")
        for key in ("wrong", "secret"):
            page.wait("!document.getElementById('key-panel').hidden")
            page.run("document.getElementById('key').focus()")
            page.type(key)
            page.key("Enter", text="\r")
        page.wait("document.getElementById('memory').value > 0")
        assert page.run("document.getElementById('key-panel').hidden") is True
        page.reload()
        page.wait("document.getElementById('memory').value > 0")
        page.ask("Hello")
        page.wait_answers(1)
        assert page.run("localStorage.length") == 1, "the key is not kept beyond the tab"
        assert "secret" not in page.run("JSON.stringify(localStorage)")


@pytest.mark.thorough
def test_errors_are_shown_and_the_message_can_be_sent_again(page: ChatPage) -> None:
    page.set_option("temperature", "-3")
    page.ask("Hello")
    page.wait(f"{page.IDLE} && document.getElementById('alert').textContent !== ''")
    assert "temperature" in page.text("#alert")
    assert page.texts == ["Hello"]
    page.set_option("temperature", "0")
    page.set_option("max_tokens", "5")
    page.press('[aria-label="Ask for an answer again"]')
    page.wait_answers(1)
    assert page.text("#alert") == ""


@pytest.mark.thorough
def test_a_field_that_is_no_number_is_not_left_out_silently(page: ChatPage) -> None:
    page.script()
    page.press("#options-button")
    page.run("document.getElementById('top_k').focus()")
    page.type("4e")
    page.ask("Hello")
    page.wait("document.getElementById('alert').textContent !== ''")
    assert page.text("#alert") == "Top-k: this is not a number"
    assert page.run("asked.length") == 0
