"""The form of a content, a text or parts, that a template gets."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.runtime.text.chat_template import render
from edgedec.runtime.text.provenance import OutsideMessage, RenderedText

PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
LOOP = "{% for p in m.content %}{% if p.type == 'text' %}({{ p.text }}){% endif %}{% endfor %}"
BOTH = "{% if m.content is string %}{{ m.content }}{% else %}" + LOOP + "{% endif %}"


def show(body: str, content: Any, role: str = "user") -> str:
    template = "{% for m in messages %}" + body + "{% endfor %}"
    messages = [{"role": role, "content": content}]
    return render(template, messages, bos_token=None, eos_token=None, add_generation_prompt=False)


@pytest.mark.parametrize(
    ("body", "of_parts", "of_text"),
    [
        (LOOP, "(one)(two)", "(x)"),
        (BOTH, "(one)(two)", "x"),
        ("{{ m.content }}", "one\ntwo", "x"),
        ("{{ m['content'] | trim }}", "one\ntwo", "x"),
        ("{{ '[' + m.content + ']' }}", "[one\ntwo]", "[x]"),
        ("{{ m.content.strip() }}", "one\ntwo", "x"),
        ("{{ m.content | tojson }}", '"one\\ntwo"', '"x"'),
        ("{{ m.content[0].text }}", "one\ntwo", "x"),
        ("{{ m.content[0]['text'] if m.content is not string else m.content }}", "one\ntwo", "x"),
        ("{% if m.role == 'user' %}" + BOTH + "{% else %}{{ m.content }}{% endif %}", "(one)(two)", "x"),
        ("nothing", "nothing", "nothing"),
        ("{{ raise_exception('no') if m.content == 'zqone' else m.content }}", "one\ntwo", "x"),
    ],
)
def test_a_template_gets_what_it_shows(body: str, of_parts: str, of_text: str) -> None:
    assert show(body, PARTS) == of_parts
    assert show(body, "x") == of_text
    assert show(body, []) in ("", "[]", '""', "nothing")


def test_each_role_has_its_own_form() -> None:
    body = "{% if m.role == 'user' %}" + LOOP + "{% else %}{{ m.role }}: {{ m.content }}{% endif %}"
    assert show(body, PARTS) == "(one)(two)"
    for role in ("system", "assistant", "tool", "critic"):
        assert show(body, PARTS, role) == f"{role}: one\ntwo"


# Messages of the system for templates that have no such role.

SYSTEM, USER, ANSWER = ({"role": role, "content": role[0]} for role in ("system", "user", "assistant"))
TURN = "{{ m.role[0] }}:{{ m.content }};"
REFUSING = "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TURN
SILENT = "{% if m.role != 'system' %}" + TURN + "{% endif %}"


def talk(body: str, *messages: dict[str, Any]) -> str:
    template = "{% for m in messages %}" + body + "{% endfor %}"
    return render(template, messages, bos_token=None, eos_token=None, add_generation_prompt=False)


@pytest.mark.parametrize("body", [REFUSING, SILENT])
def test_the_user_says_what_the_system_says_if_the_template_has_no_such_role(body: str) -> None:
    assert talk(body, SYSTEM, USER, ANSWER) == "u:s\n\nu;a:a;"
    assert talk(body, USER, ANSWER, SYSTEM, USER) == "u:u;a:a;u:s\n\nu;", "the next message, and no earlier one"
    assert talk(body, SYSTEM, SYSTEM, USER) == "u:s\n\ns\n\nu;"
    assert talk(body, USER, SYSTEM) == "u:u\n\ns;", "two messages of the user must not follow each other"
    assert talk(body, SYSTEM) == "u:s;"
    assert talk(body, USER, ANSWER, SYSTEM) == "u:u;a:a;u:s;"
    assert (
        talk(body, {"role": "system", "content": PARTS}, {"role": "user", "content": PARTS})
        == "u:one\ntwo\n\none\ntwo;"
    )


def test_other_templates_get_the_message_of_the_system() -> None:
    assert talk(TURN, SYSTEM, USER) == "s:s;u:u;"
    assert talk("{{ m.role }}", SYSTEM, USER) == "systemuser", "it shows no contents at all"
    first = "{% if loop.first and m.role == 'system' %}[{{ m.content }}]{% else %}" + TURN + "{% endif %}"
    assert talk(first, SYSTEM, USER) == "[s]u:u;"


def test_a_message_of_the_system_is_not_trusted_more_within_the_users() -> None:
    messages = [OutsideMessage(SYSTEM), dict(USER)]
    template = "{% for m in messages %}" + REFUSING + "{% endfor %}"
    text = render(template, messages, bos_token=None, eos_token=None, add_generation_prompt=False)
    assert isinstance(text, RenderedText)
    assert text.masked == "u:\0\n\n\0;"
