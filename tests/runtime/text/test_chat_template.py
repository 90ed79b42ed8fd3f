from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import BundleError, EdgedecError, UsageError
from edgedec.runtime.text import template_sandbox
from edgedec.runtime.text.chat_template import OUTPUT_LIMIT_CHARACTERS, TEMPLATE_LIMIT_CHARACTERS, render

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Hi! "},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Why?"},
]

# template written for this test with the features of Llama's and Qwen's: block lines, loop controls, namespaces, a
# macro, tools
TEMPLATE = """\
{{- bos_token }}
{%- macro turn(role, text) %}
    {{- '<|' ~ role ~ '|>\\n' + text | trim + eos_token + '\\n' }}
{%- endmacro %}
{%- set state = namespace(system='none', last=-1) %}
{% for message in messages %}
    {% if message.role == 'system' %}
        {% set state.system = message['content'] %}
        {% continue %}
    {% endif %}
    {% if (message.role == 'user') == (state.last == 'user') %}
        {{ raise_exception('roles must alternate, found two of ' + message.role) }}
    {% endif %}
    {% set state.last = message.role %}
    {%- generation -%}
    {{- turn(message.role, message.content) -}}
    {%- endgeneration -%}
{% endfor %}
{%- if tools %}
tools: {{ tools | tojson }}
{% endif %}
{%- if add_generation_prompt %}<|assistant|>
{% endif %}
"""


def show(template: str | None, messages: Any = CHAT, **extra: Any) -> str:
    names: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True} | extra
    return render(template, messages, **names)


def test_a_whole_template_is_rendered() -> None:
    said = "<s><|user|>\nHi!</s>\n<|assistant|>\nHello.</s>\n<|user|>\nWhy?</s>\n<|assistant|>\n"
    assert show(TEMPLATE, CHAT[1:]) == said
    assert show(TEMPLATE) == said.replace("Hi!", "Be brief.\n\n Hi!"), "the template leaves out what the system says"
    assert show(TEMPLATE, CHAT[1:2], add_generation_prompt=False) == "<s><|user|>\nHi!</s>\n"
    with_tools = show(TEMPLATE, CHAT[:2], tools=[{"name": "é <b>"}])
    assert 'tools: [{"name": "é <b>"}]\n' in with_tools


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% if true %}\nx\n{% endif %}\n", "x\n"),  # trim_blocks
        ("  {% if true %}x{% endif %}", "x"),  # lstrip_blocks
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% for a, b in {'x': 1}.items() if b %}{{ a }}{{ loop.length }}{{ loop.last }}{% endfor %}", "x1True"),
        ("{% for x in [1, [2, []]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}", "12"),
        ("{{ messages[1:] | map(attribute='role') | join(', ') }}", "user, assistant, user"),
        ("{{ messages[::-1][0].content }}{{ 'abc'[::-1] }}", "Why?cba"),
        ("{{ [1, 2] | tojson(indent=2) }}", "[\n  1,\n  2\n]"),
        ("{{ {'b': '<é>', 'a': none} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":null,"b":"<é>"}'),
        (
            "{{ 'a,b'.split(',')[-1] }}{{ 'x%sz' % 'y' }}{{ '{:>3}'.format(7) }}{{ ', '.join(['p', 'q']) }}",
            "bxyz  7p, q",
        ),
        ("{{ 'ab' * 2 }}{{ 7 % 3 }}{{ 2 ** 3 }}{{ [1] + [2] }}{{ 1 ~ '-' ~ none }}", "abab18[1, 2]1-None"),
        ("{{ [1, 2] | sum }}{{ 1.26 | round(1) }}{{ 'a\nb' | indent(2) }}", "31.3a\n  b"),
        ("{% set a, b = (1, 2) %}{{ a }}{{ b }}{{ dict(x=3).x }}", "123"),
        ("{% set x %}in{% endset %}{{ x }}{% filter upper %}f{% endfilter %}", "inF"),
        ("{{ missing }}|{{ missing is defined }}|{{ tools is none }}|{{ documents is none }}", "|False|True|True"),
        ("{{ enable_thinking }}", "False"),
        ("{{ messages[0].content is string }}", "True"),
    ],
)
def test_features_of_templates_are_rendered(template: str, text: str) -> None:
    assert show(template, enable_thinking=False) == text


def test_the_date_is_rendered() -> None:
    before = datetime.datetime.now().strftime("%d %b %Y")
    date = show("{{ strftime_now('%d %b %Y') }}")
    assert date in (before, datetime.datetime.now().strftime("%d %b %Y"))


def test_tokens_that_the_model_lacks_are_empty() -> None:
    assert show("[{{ bos_token }}{{ eos_token }}]", bos_token=None, eos_token=None) == "[]"


def test_a_template_cannot_change_the_conversation() -> None:
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises(EdgedecError, match="unsafe"):
        show("{{ messages.append(1) }}", messages)
    show("{% set messages = [] %}{% set ns = namespace(m=messages) %}", messages)
    assert messages == [{"role": "user", "content": "a"}]


def test_without_a_template_the_message_names_generate() -> None:
    with pytest.raises(UsageError, match="no chat template; use `generate`"):
        show(None)


def test_messages_that_are_not_data_are_refused() -> None:
    with pytest.raises(UsageError, match="not JSON data"):
        show("x", [{"role": "user", "content": object()}])


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("a\n{% if %}", "does not parse at line 2: Expected an expression"),
        ("{% foo %}", "Encountered unknown tag 'foo'"),
        ("{{ x | nothing }}", "No filter named 'nothing'"),
        ("{% if x %}" * 200 + "{% endif %}" * 200, "too many levels of indentation"),
        ("{% for x in y %}" * 30 + "{% endfor %}" * 30, "too many statically nested blocks"),
        ("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "RecursionError"),
        ("x" * (TEMPLATE_LIMIT_CHARACTERS + 1), "more than 1,048,576"),
    ],
)
def test_a_template_that_does_not_parse_is_the_bundles_fault(template: str, words: str) -> None:
    with pytest.raises(BundleError) as caught:
        show(template)
    assert words in str(caught.value)
    assert "use `generate`" in str(caught.value)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('system role is not supported') }}", "conversation: system role is not supported"),
        (TEMPLATE + "{{ messages[9].content }}", "list object has no element 9"),
        ("{{ missing.attribute }}", "'missing' is undefined"),
        ("{{ missing() }}", "'missing' is undefined"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% include 'other' %}", "no loader"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ messages.__class__() }}", "unsafe"),
        ("{% set ns = namespace() %}{% set ns.__call__ = raise_exception %}{{ ns() }}", "cannot hold '__call__'"),
        ("{{ namespace(_x=1) }}", "cannot hold '_x'"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
    ],
)
def test_a_refusal_carries_the_words_of_the_template(template: str, words: str) -> None:
    with pytest.raises(EdgedecError) as caught:
        show(template)
    assert type(caught.value) is EdgedecError
    assert words in str(caught.value)


def test_roles_that_do_not_alternate_are_refused_in_the_words_of_the_template() -> None:
    with pytest.raises(EdgedecError, match="refused the conversation: roles must alternate, found two of user"):
        show(TEMPLATE, [CHAT[1], CHAT[1]])


def grown(step: str, turns: int = 60) -> str:
    """Return ``s`` after many steps."""
    loop = "{% for i in range(" + str(turns) + ") %}{% set ns.s = " + step + " %}{% endfor %}"
    return "{% set ns = namespace(s=['a'], t='a') %}" + loop


GREEDY = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "nested filters": "{{ ([range(99999)] * 9999) | map('list') | list }}",
    "output": "{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}",
    "captured": "{% set x %}{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}{% endset %}",
    "in a macro": "{% macro m() %}{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}{% endmacro %}{{ m() }}",
    "times": "{{ 'a' * 10 ** 10 }}",
    "list times": "{{ [0] * 10 ** 10 }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "doubling +": grown("ns.s + ns.s"),
    "doubling ~": grown("ns.s ~ ns.s"),
    "doubling lists": grown("[ns.s, ns.s]"),
    "doubling tuples": grown("(ns.s, ns.s)"),
    "doubling mappings": grown("{'a': ns.s, 'b': ns.s}"),
    "doubling dict()": grown("dict(a=ns.s, b=ns.s)"),
    "doubling by varargs": "{% macro m() %}{% set ns.s = varargs %}{% endmacro %}" + grown("m(ns.s, ns.s) or ns.s"),
    "copies": "{% set l = range(99999) | list %}" + grown("ns.s + [l.copy()]", 99999),
    "slices": "{% set l = range(99999) | list %}" + grown("ns.s + [l[:]]", 99999),
    "splits": "{% set l = 'a b ' * 100000 %}" + grown("ns.s + [l.split()]", 99999),
    "center": "{{ 'a' | center(10 ** 10) }}",
    "ljust": "{{ 'a'.ljust(10 ** 10) }}",
    "indent": "{{ ('\n' * 100000) | indent(10 ** 6) }}",
    "replace": "{{ ('a' * 1000000).replace('', 'b' * 1000000) }}",
    "replace filter": "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "join filter": "{{ range(99999) | map('string') | join('x' * 100000) }}",
    "join method": "{{ ('x' * 100000).join(['a'] * 100000) }}",
    "% width": "{{ '%999999999d' % 1 }}",
    "% star": "{{ '%*d' % (10 ** 9, 1) }}",
    "format width": "{{ '{:>999999999}'.format(1) }}",
    "format variable width": "{{ '{:>{w}}'.format(1, w=10 ** 9) }}",
    "format repeats": "{{ ('{0}' * 100000).format('a' * 100000) }}",
    "json indent": "{{ [[1]] | tojson(indent=10 ** 9) }}",
    "round": "{{ 1.5 | round(10 ** 9, 'ceil') }}",
    "sum of lists": "{{ ([range(9999) | list] * 9999) | sum(start=[]) }}",
    "date": "{{ strftime_now('%999999999d') }}",
}


@pytest.mark.nightly(sample=6)
@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("template", GREEDY.values(), ids=GREEDY)
def test_a_template_that_uses_too_much_is_stopped_by_its_limits(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the limit of the clock, which would stop it after ten seconds."""
    monkeypatch.setattr(template_sandbox, "SECONDS_LIMIT", 600.0)
    with pytest.raises(EdgedecError, match="was stopped") as caught:
        show(template)
    assert "takes longer than" not in str(caught.value)


def test_the_output_limit_is_exact() -> None:
    chat = [{"role": "user", "content": "x" * OUTPUT_LIMIT_CHARACTERS}]
    assert len(show("{{ messages[0].content }}", chat)) == OUTPUT_LIMIT_CHARACTERS
    with pytest.raises(EdgedecError, match="more than 4,194,304 characters; shorten the conversation"):
        show("{{ messages[0].content }}!", chat)


def test_a_long_conversation_is_within_the_limits() -> None:
    chat = [{"role": ("user", "assistant")[i % 2], "content": "word " * 300} for i in range(1001)]
    assert len(show(TEMPLATE, chat)) > 1_400_000


@pytest.mark.thorough
def test_renderings_do_not_share_their_limits() -> None:
    busy = "{% for i in range(50000) %}{% for j in range(6) %}{% endfor %}{% endfor %}"
    assert [show(busy) for _ in range(3)] == [""] * 3


PIECES = """{{|}}|{%|%}|for x in messages|endfor|if|endif|x|messages|.content|[0]|(|)|~|+|*|9|'a'|set y =|range(9)
macro m()|endmacro|m()|is defined|,|[|]"""
pieces = st.sampled_from([*PIECES.replace("\n", "|").split("|"), "| list", "| join"])


@pytest.mark.thorough
@settings(max_examples=300)
@given(st.lists(pieces, max_size=14).map(" ".join) | st.text(max_size=30))
def test_any_text_is_a_template_or_an_edgedec_error(template: str) -> None:
    try:
        rendered = show(template)
    except EdgedecError:
        return
    assert isinstance(rendered, str)
