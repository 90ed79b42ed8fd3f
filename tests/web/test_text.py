"""Tokenizer, streams of text and chat templates in JavaScript, compared with the Python side."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Hf

from edgedec import demo
from edgedec.errors import EdgedecError
from edgedec.quantize.readers.tokenizers.sentencepiece_model import read_model_file
from edgedec.runtime.text.chat_template import render
from edgedec.runtime.text.named_templates import NAMED_TEMPLATES
from edgedec.runtime.text.stream import TextStream
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.runtime.web.probes import CONVERSATIONS
from edgedec.same_tokens import TEXTS, added_texts
from tests.quantize.exporters.support.tokenizer_styles import STYLES
from tests.web.support.node import Node

pytestmark = pytest.mark.thorough

PIECES = (
    *" \n\t.,'-0123456789aeionrstABCéñß日本🙂\u0301\u00a0\u200b<>|_▁Ġ\r\x00",
    "<s>",
    "</s>",
    "the",
    "ing",
    "  ",
    "👩\u200d👧",
    "'ll",
)
# Llama 2's template, which has roles, slices, a default system message and an exception, but no blank lines.
LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + "
    "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
# The features of templates of current families: macros, namespaces, loop controls, tools, trimmed blocks.
FEATURES = """\
{{- bos_token }}
{%- macro turn(role, text) %}
    {{- '<|' ~ role ~ '|>\\n' + text | trim + eos_token + '\\n' }}
{%- endmacro %}
{%- set state = namespace(system='none', last=none) %}
{% for message in messages %}
    {% if message.role == 'system' %}
        {% set state.system = message['content'] %}
        {% continue %}
    {% endif %}
    {% if message.role == state.last %}
        {{ raise_exception('roles must alternate') }}
    {% endif %}
    {% set state.last = message.role %}
    {{- turn(message.role, message.content) -}}
{% endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}<|assistant|>
{% endif %}
"""


def source(name: str, shared_data: Path) -> str:
    """Return the text of a ``tokenizer.json``."""
    if name == "demo":
        return (demo.TARGET / "tokenizer.json").read_text("utf-8")
    if name == "phi-2":
        return (shared_data / "tokenizers" / "phi-2" / "tokenizer.json").read_text("utf-8")
    return read_model_file(shared_data / "tokenizers" / name)


def drawn_texts(count: int) -> list[str]:
    """Return texts of characters on which tokenizers differ, and of any others."""
    rng = random.Random(7)
    texts = ["".join(rng.choices(PIECES, k=rng.randrange(1, 30))) for _ in range(count)]
    ranges = ((1, 0x250), (0x250, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000))
    return texts + [
        "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, 10))) for _ in range(count // 3)
    ]


TOKENIZERS = (
    "demo",
    "phi-2",
    "llama2-32k.tokenizer.model",
    pytest.param("bitnet2B4T-llama3.tokenizer.model", marks=pytest.mark.nightly),  # 128,000 tokens take seconds to read
    "tok105.model",
    "tokenizer_4096.model",
)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_and_texts_are_those_of_python(node: Node, shared_data: Path, name: str) -> None:
    content = source(name, shared_data)
    tokenizer = Tokenizer(content)
    texts = [*TEXTS, *drawn_texts(300)]
    results = node.run(
        """
        const { Tokenizer } = await use("text");
        const tokenizer = new Tokenizer(value.json);
        return value.texts.map((text) => {
          const plain = tokenizer.encodeRendered(text);
          return [tokenizer.encode(text), plain, tokenizer.decode(plain)];
        });
        """,
        {"json": json.loads(content), "texts": texts},
    )
    for text, (whole, plain, decoded) in zip(texts, results, strict=True):
        assert whole == tokenizer.encode(text).tolist(), text
        assert plain == tokenizer.encode_rendered(text).tolist(), text
        assert decoded == tokenizer.decode(plain), text


# Styles that the page reads otherwise (U+FEFF is a blank in JavaScript, ``single_word`` and ``dropout`` are unknown there),
# so that its probes refuse them.
READ_OTHERWISE = {"lowercase pieces", "strip", "words", "lowercase", "single word", "dropout"}


def test_every_style_is_read_alike_or_refused_by_the_probes(node: Node) -> None:
    styles = {style: make() for style, make in STYLES.items()}
    words = {style: Hf.from_str(json.dumps(tree)) for style, tree in styles.items()}
    probes = {style: [*TEXTS, *added_texts(one)] for style, one in words.items()}
    results = node.run(
        """
        const { Tokenizer } = await use("text");
        const read = ({ json, texts }) => {
          try {
            const tokenizer = new Tokenizer(json);
            return texts.map((text) => tokenizer.encode(text));
          } catch (error) {
            return error.message;
          }
        };
        return value.map(read);
        """,
        [{"json": styles[style], "texts": probes[style]} for style in styles],
    )
    expected = [[words[style].encode(text).ids for text in probes[style]] for style in styles]
    read = zip(styles, results, expected, strict=True)
    assert {style for style, found, ids in read if found != ids} == READ_OTHERWISE


@pytest.mark.parametrize("name", TOKENIZERS[:5])
def test_streams_of_any_ids_are_those_of_python(node: Node, shared_data: Path, name: str) -> None:
    content = source(name, shared_data)
    tokenizer = Tokenizer(content)
    rng = random.Random(11)
    cases = list[dict[str, Any]]()
    for number in range(120):
        text = "".join(rng.choices(PIECES, k=20))
        ids = tokenizer.encode(text).tolist()
        if number % 2:  # any ids, among them invalid bytes, special tokens and ids without a token
            few = rng.sample(range(min(tokenizer.size, 300)), 8)
            ids = [rng.choice([*few, rng.randrange(tokenizer.size + 3)]) for _ in range(30)]
        split = rng.randrange(len(ids) + 1)
        cases.append({"prompt": ids[:split], "ids": ids[split:]})
    results = node.run(
        """
        const { Tokenizer, textStream } = await use("text");
        const tokenizer = new Tokenizer(value.json);
        return value.cases.map(({ prompt, ids }) => {
          const stream = textStream(tokenizer, prompt);
          return [...ids.map((id) => stream.feed(id)), stream.finish()];
        });
        """,
        {"json": json.loads(content), "cases": cases},
    )
    for case, pieces in zip(cases, results, strict=True):
        stream = TextStream(tokenizer, context=case["prompt"])
        assert pieces == [*(stream.feed(i) for i in case["ids"]), stream.finish()], case


def templates() -> dict[str, str]:
    config = json.loads((demo.TARGET / "tokenizer_config.json").read_text("utf-8"))
    return {**NAMED_TEMPLATES, "demo": config["chat_template"], "llama2": LLAMA_2, "features": FEATURES}


@pytest.mark.parametrize("name", sorted(templates()))
def test_conversations_are_rendered_as_in_python(node: Node, name: str) -> None:
    template = templates()[name]
    conversations: list[list[dict[str, str]]] = [
        [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(contents)]
        for contents in CONVERSATIONS
    ]
    conversations += [
        [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "Hi"}],
        [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
        [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}, {"role": "system", "content": "c"}],
        [
            {"role": "system", "content": "a"},
            {"role": "system", "content": "b"},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d"},
            {"role": "system", "content": "e"},
        ],
        [{"role": "system", "content": "a"}],
    ]
    results = node.run(
        """
        const { ChatTemplate } = await use("template");
        const template = new ChatTemplate(value.source, { bos: "<s>", eos: "</s>" });
        return value.conversations.map((messages) => {
          try {
            return template.render(messages);
          } catch (error) {
            return { refused: error.name };
          }
        });
        """,
        {"source": template, "conversations": conversations},
    )
    assert results == [expected(template, messages) for messages in conversations]


def expected(template: str, messages: list[dict[str, str]]) -> Any:
    try:
        return render(template, messages, bos_token="<s>", eos_token="</s>", add_generation_prompt=True)
    except EdgedecError:
        return {"refused": "SiteError"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("value.probes.texts[0].ids[1] += 1", 'the tokenizer makes other ids of "Once upon a time" than edgedec'),
        ("value.probes.conversations[1].text += 'x'", "the chat template makes another text than in edgedec"),
        ("", None),
    ],
)
def test_a_browser_that_reads_otherwise_is_refused(node: Node, change: str, words: str | None) -> None:
    from edgedec.bundle.bundle import Bundle
    from edgedec.runtime.web.probes import probes, spellings

    bundle = Bundle.open(demo.bundle_path())
    tokenizer = Tokenizer.load(bundle.tokenizer_file)
    found = probes(bundle, tokenizer)
    around = added_texts(Hf.from_file(str(bundle.tokenizer_file)))
    assert [text["text"] for text in found["texts"]] == [*TEXTS, *around]
    assert len(found["conversations"]) == len(CONVERSATIONS)
    message = node.run(
        f"""
        const {{ Tokenizer }} = await use("text");
        const {{ ChatTemplate }} = await use("template");
        const {{ checkProbes }} = await use("probes");
        {change};
        try {{
          checkProbes(value.probes, new Tokenizer(value.json), new ChatTemplate(value.template, value.spellings));
        }} catch (error) {{
          return error.message;
        }}
        """,
        {
            "json": json.loads(bundle.tokenizer_file.read_text("utf-8")),
            "template": bundle.chat_template,
            "spellings": spellings(bundle, tokenizer),
            "probes": found,
        },
    )
    assert message is None if words is None else words in message
