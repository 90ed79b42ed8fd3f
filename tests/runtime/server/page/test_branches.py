"""Edited messages and further tries in a real browser: no answer is lost before there is a new one."""

from __future__ import annotations

import pytest

from tests.runtime.server.support.chat_page import ChatPage


@pytest.mark.thorough
def test_an_edit_keeps_the_branch_until_the_new_answer_is_there(page: ChatPage) -> None:
    page.converse("one", "1", "two", "2")
    before = page.stored()
    page.edit(0, "uno")
    page.wait("asked.length === 3")
    assert page.run("asked[2].messages") == [{"role": "user", "content": "uno"}]
    page.run("delta({content: '**on'})")
    page.wait(f"{page.TEXTS}.length === 2 && {page.TEXTS}[1] !== ''")
    assert page.stored() == before, "nothing is changed before the answer is there"
    page.run("delta({content: 'e**'}); finish()")
    page.wait_answers(1)
    assert page.texts == ["uno", "one"]
    assert [one["content"] for one in page.stored()[0]["messages"]] == ["one", "1", "two", "2", "uno", "**one**"]
    assert page.text("#notice").startswith("The branch before the edit is kept.")
    page.run("document.querySelector('#notice button').click()")
    assert page.texts == ["one", "1", "two", "2"]
    page.reload()
    assert page.texts == ["one", "1", "two", "2"]
    assert page.text("article .version") == "1 of 2"
    page.press('[aria-label="Later version of message 1"]')
    assert page.texts == ["uno", "one"]
    page.press('[aria-label="Earlier version of message 1"]')
    assert page.texts == ["one", "1", "two", "2"]


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["stopped", "refused", "cut"])
def test_an_edit_without_an_answer_changes_nothing_and_keeps_the_edited_text(page: ChatPage, end: str) -> None:
    page.converse("one", "1", "two", "2")
    before = page.stored()
    page.edit(0, "uno")
    page.wait("asked.length === 3")
    if end == "stopped":
        page.key("Escape")
    elif end == "refused":
        page.run("say({error: {message: 'out of order'}})")
    else:
        page.run("feed.close()")
    page.wait(page.IDLE)
    assert page.stored() == before
    assert page.run("document.getElementById('edited').value") == "uno"
    expected = {"stopped": "", "refused": "out of order", "cut": "the connection ended before the answer did"}
    assert page.text("#alert") == expected[end]
    page.key("Escape")
    assert page.texts == ["one", "1", "two", "2"]


@pytest.mark.thorough
def test_another_try_never_loses_the_last_answer(page: ChatPage) -> None:
    page.converse("one", "1")
    page.press('[aria-label="Try the last answer again"]')
    page.wait("asked.length === 2")
    assert page.run("asked[1].messages") == [{"role": "user", "content": "one"}]
    page.key("Escape")
    page.wait(page.IDLE)
    assert page.texts == ["one", "1"]
    page.press('[aria-label="Try the last answer again"]')
    page.wait("asked.length === 3")
    page.run("delta({content: 'uno'}); finish()")
    page.wait(page.IDLE)
    assert page.texts == ["one", "uno"]
    assert page.text("article.assistant .version") == "2 of 2"
    page.run("document.querySelector('#notice button').click()")
    assert page.texts == ["one", "1"]
    page.ask("two")
    page.wait("asked.length === 4")
    assert [one["content"] for one in page.run("asked[3].messages")] == ["one", "1", "two"]
    page.run("finish()")


@pytest.mark.thorough
def test_what_was_written_before_a_reload_is_kept(page: ChatPage) -> None:
    page.converse("one", "1")
    page.ask("two")
    page.wait("asked.length === 2")
    page.run("delta({content: 'half an ans'})")
    page.wait(f"{page.TEXTS}[3] === 'half an ans'")
    page.reload()
    assert page.texts == ["one", "1", "two", "half an ans"]
    page.script()
    page.ask("three")
    page.wait("asked.length === 1")
    page.reload()
    assert page.texts[4:] == ["three"], "a message without an answer is kept, too"
    page.script()
    page.press('[aria-label="Ask for an answer again"]')
    page.wait("asked.length === 1")
    page.run("delta({content: '3'}); finish()")
    page.wait(page.IDLE)
    assert page.texts[4:] == ["three", "3"]


@pytest.mark.thorough
def test_an_edited_text_waits_in_its_chat_if_its_answer_fails_while_another_is_shown(page: ChatPage) -> None:
    page.converse("one", "1")
    page.edit(0, "uno")
    page.wait("asked.length === 2")
    page.press("#new")
    page.run("say({error: {message: 'out of order'}})")
    page.wait(page.IDLE)
    assert page.text("#alert") == "out of order"
    page.press("#chats-button")
    page.press("#chat-list .name")
    assert page.run("document.getElementById('edited').value") == "uno"
    page.ask("two")
    page.wait("asked.length === 3")
    page.run("delta({content: '2'}); finish()")
    page.wait(page.IDLE)
    assert page.run("document.getElementById('edited').value") == "uno", "another message does not close the editor"
    page.key("Escape")
    assert page.texts == ["one", "1", "two", "2"]
