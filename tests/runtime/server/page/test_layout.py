"""Sizes, colours, keyboard and names of the page in a real browser."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.runtime.server.support.chat_page import ChatPage

SHIFT = 8  # modifier of a key in the DevTools protocol

PANELS = ("", "chats", "options", "memory-panel", "key-panel")
SIZES = """(() => {
  const box = (one) => one.getBoundingClientRect();
  const shown = [...document.querySelectorAll('button, input, textarea, summary')]
    .filter((one) => one.checkVisibility() && one.type !== 'checkbox');
  const log = box(document.querySelector('main'));
  return {
    log: log.height,
    form: box(document.getElementById('form')).bottom,
    width: document.documentElement.scrollWidth,
    wide: document.querySelector('main').scrollWidth - document.querySelector('main').clientWidth,
    small: shown.filter((one) => box(one).width < 44 || box(one).height < 44)
      .map((one) => [one.id || one.textContent, box(one).width, box(one).height]),
  };
})()"""
CONTRAST = """(() => {
  const light = (parts) => parts.map((value) => value / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const paper = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const found = parts(getComputedStyle(at).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found.slice(0, 3);
    }
  };
  const ratio = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  const poor = [];
  const check = (one, pseudo) => {
    const found = ratio(light(parts(getComputedStyle(one, pseudo).color).slice(0, 3)), light(paper(one)));
    if (!(found >= 4.5)) poor.push([one.id || one.className || one.tagName, pseudo, found]);
  };
  for (const one of document.querySelectorAll('body *')) {
    const hasText = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (one.checkVisibility() && (hasText || one.value)) check(one);
    if (one.checkVisibility() && one.placeholder) check(one, '::placeholder');
  }
  return poor;
})()"""
ANSWER = (
    "A **bold** text, `code` and [a link](https://example.org).\n\n```py\n" + "long = " * 60 + "\n```\n\n"
    "| a | b |\n|---|---|\n| 1 | " + "wide " * 40 + " |\n\n> quoted\n\n" + "x" * 400
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_sizes_and_contrast(page: ChatPage, width: int, scheme: str) -> None:
    """The conversation has half of the height whatever is open, all can be touched, and read in both schemes."""
    height = 640
    page.emulate(width, height, scheme)
    page.run("document.querySelector('#system').value = 'word '.repeat(300)")
    page.script()
    page.ask("y" * 300)
    page.wait("asked.length === 1")
    page.run("delta({reasoning_content: 'thoughts'})")
    chunk: dict[str, Any] = {"guessed": True, "choices": [{"delta": {"content": ANSWER}}]}
    page.run(f"say({json.dumps(chunk)}); finish()")
    page.wait(page.IDLE)
    page.run("document.querySelector('.thinking').open = true")
    page.press('[aria-label="Try the last answer again"]')
    page.wait("asked.length === 2")
    page.run("delta({content: 'again'}); say({error: {message: 'a long message of an error '.repeat(20)}})")
    page.wait(page.IDLE)
    page.run("document.getElementById('message').value = 'line\\n'.repeat(30)")
    for panel in PANELS:
        for other in PANELS[1:]:
            page.run(f"document.getElementById('{other}').hidden = {json.dumps(other != panel)}")
        sizes = page.run(SIZES)
        assert sizes["log"] >= height / 2, panel
        assert sizes["width"] <= width, panel
        assert sizes["wide"] <= 0, panel
        assert sizes["form"] <= height + 0.5, panel
        assert sizes["small"] == [], panel
        assert page.run(CONTRAST) == [], (panel, "WCAG 2.2 asks for 4.5")
    page.press('[aria-label="Earlier version of message 2"]')
    page.press('[aria-label="Edit message 1"]')
    assert page.run(SIZES)["small"] == []
    assert page.run(CONTRAST) == []
    page.press("#chats-button")
    page.open_tools(0)
    assert page.run(SIZES)["small"] == []
    page.press("#chat-list .tools button")
    sizes = page.run(SIZES)
    assert (sizes["small"], sizes["width"] <= width, sizes["log"] >= height / 2) == ([], True, True)


@pytest.mark.thorough
def test_keyboard_and_screen_reader(page: ChatPage) -> None:
    page.wait("document.querySelectorAll('#examples button').length")
    assert page.run("document.activeElement.id") == "message"
    page.script()
    page.type("a")
    page.key("Enter", text="\r", modifiers=SHIFT)
    page.type("b")
    assert page.run("document.getElementById('message').value") == "a\nb"
    page.key("Enter", text="\r")
    page.wait("asked.length === 1")
    page.run("delta({content: '```\\ncode\\n```'}); finish()")
    page.wait(page.IDLE)
    for panel in PANELS[1:]:
        page.run(f"document.getElementById('{panel}').hidden = false")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
    ]
    controls = {"textbox", "button", "spinbutton", "checkbox", "meter", "log", "region", "navigation"}
    assert [role for role, name in named if role in controls and not name] == []
    assert controls <= {role for role, _ in named}
    for panel in PANELS[1:]:
        page.run(f"document.getElementById('{panel}').hidden = true")
    page.run("document.getElementById('chats-button').focus()")
    order = ["chats-button"]
    for _ in range(9):
        page.key("Tab")
        order.append(
            page.run(
                "document.activeElement.id || document.activeElement.ariaLabel || document.activeElement.textContent"
            )
        )
    assert order == [
        "chats-button", "new", "options-button", "memory-button", "conversation", "Edit message 1", "Copy this code", "Code",
        "Copy message 2", "Try the last answer again",
    ]  # fmt: skip
    page.run("document.getElementById('options-button').focus()")
    page.key("Enter", text="\r")
    assert page.run("document.getElementById('options').hidden") is False
    page.key("Escape")
    assert page.run("document.getElementById('options').hidden") is True
