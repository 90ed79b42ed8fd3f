"""The form of a content, a text or parts, that a template gets."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.runtime.text.chat_template import render

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
