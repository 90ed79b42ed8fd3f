"""Compose the chat templates of a folder into one program, and compare it with the templates themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import EdgedecError, UnsupportedError
from edgedec.quantize.readers.chat_templates import compose
from edgedec.runtime.text.chat_template import render

SOURCE = Path("a folder")
PIECES = (
    "\n",
    "\r\n",
    " ",
    "  x ",
    "{% if true %}",
    "{% endif %}",
    "{%- if true -%}",
    "{{ bos_token }}",
    "{# c #}",
    "\t",
    "{{- pad_token -}}",
    "{% set y = 1 %}",
    "{% raw %}{{{% endraw %}",
    "{{ tools | length if tools else 0 }}",
)


def rendered(template: str | None, tools: Any = None, **names: str) -> str:
    messages = [{"role": "user", "content": "hi"}]
    return render(
        template, messages, bos_token="<s>", eos_token="</s>", add_generation_prompt=True, tools=tools, **names
    )


def composed(**templates: str) -> str | None:
    given = {"bos_token": "<s>", "eos_token": "</s>"}
    return compose(SOURCE, templates, {**given, "pad_token": '<p"\\ad>'}, given)


@pytest.mark.thorough
@given(st.lists(st.sampled_from(PIECES), max_size=8), st.lists(st.sampled_from(PIECES), max_size=8))
def test_one_program_renders_what_each_template_renders(default: list[str], tools: list[str]) -> None:
    sources = ["".join(pieces) for pieces in (default, tools)]
    try:
        alone = [rendered(sources[at], given, pad_token='<p"\\ad>') for at, given in ((0, None), (1, []))]
    except EdgedecError:  # the pieces are no program
        return
    program = composed(default=sources[0], tool_use=sources[1])
    assert [rendered(program, None), rendered(program, [])] == alone
    assert rendered(composed(default=sources[0]), [{}]) == rendered(sources[0], [{}], pad_token='<p"\\ad>')


def test_a_template_alone_stays_as_it_is() -> None:
    assert composed(default="{{ bos_token }}x\n") == "{{ bos_token }}x\n"
    assert compose(SOURCE, {}, {"pad_token": "x"}, {}) is None


def test_tokens_that_the_reader_names_otherwise_are_set() -> None:
    given = {"bos_token": "<s>", "eos_token": "</s>"}
    program = compose(SOURCE, {"default": "{{ bos_token }}|{{ eos_token }}"}, {"eos_token": "<|end|>"}, given)
    assert rendered(program) == "|<|end|>"


def test_a_template_for_tools_alone_refuses_other_conversations() -> None:
    program = composed(tool_use="{{ tools[0] }}")
    assert rendered(program, ["t"]) == "t"
    with pytest.raises(EdgedecError, match="a chat template for tools only"):
        rendered(program)


def test_other_names_are_named(caplog: pytest.LogCaptureFixture) -> None:
    assert composed(default="x", rag="y") == "x"
    assert "the chat templates 'rag' are left out; the default is taken" in caplog.text
    with pytest.raises(UnsupportedError, match=r"a folder: no chat template is named \"default\", only 'rag'"):
        composed(rag="y")
