"""Markdown in a real browser: no text becomes more than text."""

from __future__ import annotations

import json

import pytest

from tests.runtime.server.support.chat_page import ChatPage

ATTACKS = {
    "script": "<script>globalThis.hit = 1</script><img src=x onerror='globalThis.hit = 1'>",
    "in code": "```html\n<script>globalThis.hit = 1</script>\n```",
    "in a language": '```"><script>globalThis.hit=1</script>\nx\n```',
    "javascript": "[x](javascript:globalThis.hit=1) [y](JaVaScRiPt:hit) [z](data:text/html,<script>1</script>)",
    "hidden scheme": "[x](java\tscript:hit) [y](&#106;avascript:hit) <javascript:hit> [z](//evil.example) [v](vbscript:x)",
    "attributes": '[x](https://e.example/"onmouseover="globalThis.hit=1) [y](https://user:pass@e.example/)',
    "picture": "![x](https://e.example/track.png) ![y](javascript:hit)",
    "table": "| <b>a</b> | [x](javascript:hit) |\n|---|---|\n| <i onclick=hit()> | <style>*{display:none}</style> |",
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ATTACKS)
def test_no_text_of_the_model_becomes_more_than_text(page: ChatPage, name: str) -> None:
    page.call("Network.enable")
    page.page.requests.clear()
    page.converse("attack", ATTACKS[name])
    made = page.run(
        "[...document.querySelectorAll('article.assistant .text *')].map((one) => one.tagName.toLowerCase())"
    )
    allowed = {"p", "div", "span", "button", "pre", "code", "a", "table", "thead", "tbody", "tr", "th", "td"}
    assert set(made) <= allowed
    assert page.run("globalThis.hit") is None
    links = page.run(
        "[...document.querySelectorAll('article.assistant a')]"
        ".map((one) => [one.protocol, one.rel, one.target, one.attributes.length])"
    )
    assert all(link == ["https:", "noopener noreferrer nofollow", "_blank", 3] for link in links), links
    assert [url for url in page.page.requests if "e.example" in url or "evil" in url] == []
    assert page.stored()[0]["messages"][1]["content"] == ATTACKS[name]
    assert page.complaints == []


@pytest.mark.thorough
def test_the_browser_itself_refuses_to_read_a_text_as_html(page: ChatPage) -> None:
    refused = (
        "(() => { try { document.body.innerHTML = '<b>x</b>'; return ''; } catch (error) { return error.name; } })()"
    )
    assert page.run(refused) == "TypeError"


@pytest.mark.thorough
def test_code_is_copied_and_links_show_where_they_lead(page: ChatPage) -> None:
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    answer = "# A\n\n**bold** [here](https://example.org/x)\n\n```py\na = 1\n  b\n```\n\n- one\n- two"
    page.converse("code", answer)
    assert page.run("[...document.querySelectorAll('article.assistant .text > *')].map((one) => one.tagName)") == [
        "H3", "P", "DIV", "UL",
    ]  # fmt: skip
    assert page.text("article .target") == " (https://example.org/x)"
    page.press('[aria-label="Copy this code"]')
    page.wait("document.querySelector('.code button').textContent === 'Copied'")
    assert page.run("navigator.clipboard.readText()") == "a = 1\n  b"
    page.run("Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })")
    page.press('[aria-label="Copy message 2"]')
    page.wait("document.querySelector('article.assistant > .tools button').textContent === 'Copied'")
    page.run("delete navigator.clipboard")
    assert page.run("navigator.clipboard.readText()") == answer


@pytest.mark.thorough
def test_every_beginning_of_an_answer_can_be_shown_and_finished_blocks_stay(page: ChatPage) -> None:
    whole = "First.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx = `1`\n```\n\n1. **one\n2. [two](https://e.example"
    page.script()
    page.ask("stream")
    page.wait("asked.length === 1")
    page.run("delta({content: 'First.\\n\\n'})")
    page.wait(f"{page.TEXTS}[1] === 'First.'")
    page.run("globalThis.first = document.querySelector('article.assistant .text p')")
    for character in whole[8:]:
        page.run(f"delta({{content: {json.dumps(character)}}})")
    page.wait(f"{page.TEXTS}[1].includes('[two](https://e.example')")
    assert page.run("first.isConnected") is True
    page.run("finish()")
    page.wait(page.IDLE)
    assert page.stored()[0]["messages"][1]["content"] == whole
    assert page.complaints == []
