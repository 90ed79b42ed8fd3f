"""The conversations that a real browser keeps: list, files, and a storage that is full, broken or absent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runtime.server.support.chat_page import ChatPage
from tests.runtime.server.test_streaming import until


@pytest.mark.thorough
def test_chats_are_listed_renamed_deleted_and_brought_back(page: ChatPage) -> None:
    page.converse("one", "1")
    page.press("#new")
    page.converse("two", "2")
    page.press("#chats-button")
    assert page.chats == ["two", "one"]
    page.open_tools(1)
    page.press('[aria-label="Rename one"]')
    page.type("The first")
    page.key("Enter", text="\r")
    assert page.chats == ["two", "The first"]
    page.reload()
    page.press("#chats-button")
    assert sorted(page.chats) == ["The first", "two"]
    page.run(
        "[...document.querySelectorAll('#chat-list .name')].find((one) => one.textContent === 'The first').click()"
    )
    assert page.texts == ["one", "1"]
    page.open_tools(page.chats.index("The first"))
    page.press('[aria-label="Delete The first"]')
    assert page.chats == ["two"]
    assert page.texts == []
    assert len(page.stored()) == 1
    page.run("document.querySelector('#notice button').click()")
    assert page.texts == ["one", "1"]
    assert sorted(page.chats) == ["The first", "two"]
    assert page.complaints == []


@pytest.mark.thorough
def test_chats_are_saved_to_files_and_read_from_them(page: ChatPage, tmp_path: Path) -> None:
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.converse("one", "*1*")
    page.press("#chats-button")
    page.open_tools(0)
    page.press('[aria-label="Save one as JSON"]')
    page.press('[aria-label="Save one as Markdown"]')
    page.press("#export-all")
    until(lambda: {path.name for path in tmp_path.iterdir()} >= {"one.json", "one.md", "edgedec-chats.json"})
    assert (tmp_path / "one.md").read_text("utf-8") == "# one\n\n## You\n\none\n\n## Model\n\n*1*\n"
    saved = json.loads((tmp_path / "one.json").read_text("utf-8"))
    assert saved["conversations"] == page.stored()
    page.press('[aria-label="Delete one"]')
    assert page.stored() == []
    page.choose_file(tmp_path / "one.json")
    page.wait("document.getElementById('notice').textContent.includes('Imported')")
    assert page.text("#notice") == "Imported from one.json: 1 new."
    assert page.texts == ["one", "1"]
    assert page.stored() == saved["conversations"]
    page.choose_file(tmp_path / "edgedec-chats.json")
    page.wait("document.getElementById('notice').textContent.includes('already')")
    assert page.text("#notice") == "Imported from edgedec-chats.json: 0 new, 1 here already."
    (tmp_path / "bad.json").write_text(
        '{"format": "edgedec-chats", "version": 1, "conversations": [{"version": 1}]}', "utf-8"
    )
    page.choose_file(tmp_path / "bad.json")
    page.wait("document.getElementById('alert').textContent !== ''")
    assert page.text("#alert") == "bad.json was not imported: conversations[0]: title is not a text."


@pytest.mark.thorough
def test_a_full_storage_is_said_and_loses_nothing(page: ChatPage) -> None:
    page.converse("one", "1")
    page.run("localStorage.setItem('filler', 'x'.repeat(5 * 1024 * 1024 - 2000))")
    page.ask("two" * 1000)
    page.wait("asked.length === 2")
    assert "the browser's storage for this page is full" in page.text("#alert")
    page.run("delta({content: '2'}); finish()")
    page.wait(page.IDLE)
    assert page.texts == ["one", "1", "two" * 1000, "2"]
    assert [one["content"] for one in page.stored()[0]["messages"]] == ["one", "1"], "what was stored stays"
    page.press("#chats-button")
    assert "it is not stored" in page.text("#chat-list")
    page.press("#new")
    page.run("document.querySelector('#chat-list .name').click()")
    assert page.texts == ["one", "1", "two" * 1000, "2"], "it is still in the page"
    page.run("localStorage.removeItem('filler')")
    page.ask("three")
    page.wait("asked.length === 3")
    page.run("delta({content: '3'}); finish()")
    page.wait(page.IDLE)
    assert len(page.stored()[0]["messages"]) == 6
    assert "it is not stored" not in page.text("#chat-list")


@pytest.mark.thorough
def test_a_chat_that_cannot_be_read_is_left_as_it_is(page: ChatPage) -> None:
    page.run("localStorage.setItem('edgedec.chat.broken', '{\"version\": 1, \"messages\": [')")
    page.run("localStorage.setItem('edgedec.chat.newer', '{\"version\": 7}')")
    page.reload()
    page.press("#chats-button")
    shown = page.text("#chat-list")
    assert "It is left as it is: it is not JSON." in shown
    assert "it has version 7, and this page knows versions up to 1: use a newer edgedec" in shown
    page.script()
    page.converse("one", "1")
    assert page.run("localStorage.getItem('edgedec.chat.newer')") == '{"version": 7}'
    assert page.complaints == []


@pytest.mark.thorough
def test_a_browser_without_a_storage_says_so_and_talks(page: ChatPage) -> None:
    script = """for (const name of ['localStorage', 'sessionStorage']) {
      Object.defineProperty(window, name, { get() { throw new DOMException('', 'SecurityError'); } });
    }"""
    number = page.call("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
    try:
        page.reload()
        assert page.text("#notice").startswith(
            "This browser stores nothing for this page: chats are lost when it is closed."
        )
        page.script()
        page.converse("one", "1")
        assert page.texts == ["one", "1"]
        assert "This chat is not stored: this browser stores nothing for this page." in page.text("#alert")
        assert "this page only" in page.text("#key-place")
        assert page.complaints == []
        page.run("globalThis.leaving = new Event('beforeunload', { cancelable: true }); dispatchEvent(leaving)")
        assert page.run("leaving.defaultPrevented") is True, "the browser asks before the chat is lost"
        page.run("BeforeUnloadEvent.prototype.preventDefault = () => {}")  # nobody would answer
    finally:
        page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=number)


@pytest.mark.thorough
def test_a_system_prompt_belongs_to_its_chat(page: ChatPage) -> None:
    page.press("#options-button")
    page.run("document.getElementById('system').focus()")
    page.type("Be brief.")
    page.converse("one", "1")
    system = {"role": "system", "content": "Be brief."}
    assert page.run("asked[0].messages") == [system, {"role": "user", "content": "one"}]
    assert page.stored()[0]["system"] == "Be brief."
    page.press("#new")
    assert page.run("document.getElementById('system').value") == ""
    page.converse("two", "2")
    assert page.run("asked[1].messages") == [{"role": "user", "content": "two"}]
    page.press("#chats-button")
    page.run("[...document.querySelectorAll('#chat-list .name')].find((one) => one.textContent === 'one').click()")
    assert page.run("document.getElementById('system').value") == "Be brief."


@pytest.mark.thorough
def test_an_answer_goes_on_while_another_chat_is_shown(page: ChatPage) -> None:
    page.script()
    page.ask("one")
    page.wait("asked.length === 1")
    page.press("#new")
    assert page.texts == []
    page.run("delta({content: '1'}); finish()")
    page.wait(page.IDLE)
    assert page.texts == []
    page.press("#chats-button")
    page.run("document.querySelector('#chat-list .name').click()")
    assert page.texts == ["one", "1"]
