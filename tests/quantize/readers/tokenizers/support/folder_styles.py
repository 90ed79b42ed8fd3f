"""Write the tokenizer of a model as folders of many styles: the same small vocabularies, described by different files."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

WORDS = ("the", "king", "hello", "cat", "and", "world", "user", "12", "34", "tool", "call")
FAMILY_SIZES = {"vocab_size": 640, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
TEXTS = (
    "hello king",
    "Hello  the cat",
    "<|im_start|>user\nHi<|im_end|>\nthe",
    " a <tool_call> b</tool_call>",
    "<s>the</s> the",
    "  two  spaces\n\n\tand",
    "the<sep> cat<sep>the",
    "12345 é é ＡＢ 1234",
    "the king's 'S we'LL",
    "<|im_end|>  \n y",
    "[PAD] <img>the ##B",
    "naïve 🦙\r\n",
    "",
    "the▁cat",
    "<mask> <pad>",
)
TURNS = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMING = (
    "{{ pad_token }}|{{ unk_token }}|{{ sep_token }}|{{ image_token }}|{{ eos_token }}\n"
    "   {% if true %}\nx{% endif %}  \n"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def flagged(text: str, **flags: bool) -> dict[str, Any]:
    """Return an added token with all its flags."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"content": text, **plain, **flags}


def _letters() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + at) for at in range(len(others))]


def _chains(space: str) -> list[tuple[str, str]]:
    """Return merges that build every word, with and without a space before it, letter by letter."""
    merges: dict[tuple[str, str], None] = {}
    for word in WORDS:
        for text in (word, space + word):
            for end in range(1, len(text)):
                merges[text[:end], text[end]] = None
    return list(merges)


def byte_level(**changes: Any) -> dict[str, Any]:
    """Return a ``tokenizer.json`` of Llama 3's form: control tokens, bytes, and words."""
    merges = _chains("Ġ")
    words = [*CONTROL, *_letters(), *dict.fromkeys("".join(merge) for merge in merges)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": at, **flagged(text)} for at, text in enumerate(CONTROL)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: at for at, text in enumerate(words)},
            "merges": [list(merge) for merge in merges],
        },
    } | changes


def pieces(*user: str) -> list[tuple[str, float, int]]:
    """Return text, score and kind of the pieces of a SentencePiece model that falls back to bytes."""
    joined = dict.fromkeys("".join(merge) for merge in _chains("▁"))
    letters = dict.fromkeys("▁" + "".join(WORDS) + "aAbBcCxyHié'🦙")
    texts = [*letters, *(text for text in joined if text not in letters)]
    return [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        *((text, 0.0, 4) for text in user),
        *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)),
        *((text, -float(at), 1) for at, text in enumerate(texts) if text not in user),
    ]


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _message(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def sentencepiece(
    *user: str,
    training: Mapping[int, int] | None = None,
    normalizing: Mapping[int, int] | None = None,
    kinds: Mapping[str, int] | None = None,
) -> bytes:
    """Return a SentencePiece ``.model`` of BPE, as its protocol buffer is documented; ``kinds`` are those of some pieces."""
    others = kinds or {}
    trained = {3: 2, 35: 1} | dict(training or {})
    normal = {3: 1, 4: 0, 5: 1} | dict(normalizing or {})
    parts = [
        _message(
            1,
            _message(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([others.get(text, kind)]),
        )
        for text, score, kind in pieces(*user)
    ]
    for number, settings in ((2, trained), (3, normal)):
        parts.append(_message(number, b"".join(_varint(key << 3) + _varint(value) for key, value in settings.items())))
    return b"".join(parts)


def as_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def settings(**changes: Any) -> dict[str, bytes]:
    return {
        "tokenizer_config.json": as_json(
            {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"} | changes
        )
    }


def _llama(**changes: Any) -> dict[str, bytes]:
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "tokenizer_class": "LlamaTokenizer"}
    return {"tokenizer.model": sentencepiece(), "tokenizer_config.json": as_json(named | changes)}


def _decoder(*entries: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    return {"added_tokens_decoder": {str(index): token for index, token in entries}}


_SIZE = len(byte_level()["model"]["vocab"])
_PIECES = len(pieces())
_LISTED = [(at, flagged(text)) for at, text in enumerate(CONTROL)]
_SPM_LISTED = [(at, flagged(text)) for at, text in enumerate(("<unk>", "<s>", "</s>"))]


def spaced(scheme: str) -> dict[str, Any]:
    """Return a ``tokenizer.json`` of SentencePiece's kind, which says itself where a space is added."""
    plain = pieces()
    merges = [list(merge) for merge in _chains("▁")]
    tokens = {"id": 1, **flagged("<s>")}, {"id": 2, **flagged("</s>")}
    return byte_level() | {
        "added_tokens": [{"id": 0, **flagged("<unk>")}, *tokens],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                *([{"type": "Prepend", "prepend": "▁"}] if scheme == "prepend" else []),
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None
        if scheme == "prepend"
        else {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False},
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": byte_level()["model"]
        | {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
        | {"vocab": {text: at for at, (text, _, _) in enumerate(plain)}, "merges": merges},
    }


def merges_file(tree: Mapping[str, Any]) -> bytes:
    return ("#version: 0.2\n" + "\n".join(" ".join(merge) for merge in tree["model"]["merges"]) + "\n").encode()


def _post(*ends: str) -> dict[str, Any]:
    begin, end = ([{"SpecialToken": {"id": text, "type_id": 0}}] if text else [] for text in ends)
    sequence = [{"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": [*begin, *sequence, *end],
        "pair": [*begin, *sequence, *end, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": [CONTROL.index(text)], "tokens": [text]} for text in ends if text},
    }


_PLAIN = as_json(byte_level())
_QWEN = {"model_type": "qwen3"}
# Each style: the configuration's family and other keys, and the files of the tokenizer.
STYLES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, bytes]]] = {
    "json alone": ({}, {"tokenizer.json": _PLAIN}),
    "json and settings": (
        {},
        {"tokenizer.json": _PLAIN, **settings(chat_template=TEMPLATE, bos_token="<|endoftext|>")},
    ),
    "new tokens in added_tokens_decoder": (
        {},
        {
            "tokenizer.json": _PLAIN,
            **settings(
                **_decoder(
                    *_LISTED,
                    (_SIZE, flagged("<tool_call>", special=False)),
                    (_SIZE + 1, flagged("</tool_call>", special=False, lstrip=True)),
                )
            ),
        },
    ),
    "flags in added_tokens_decoder": (
        {},
        {
            "tokenizer.json": as_json(
                byte_level(
                    added_tokens=[{"id": at, **flagged(text, special=at < 2)} for at, text in enumerate(CONTROL)]
                )
            ),
            **settings(**_decoder(*_LISTED[:2], (2, flagged("<|im_end|>", rstrip=True, special=True)))),
        },
    ),
    "a word that becomes an added token": (
        {},
        {"tokenizer.json": _PLAIN, **settings(**_decoder(*_LISTED, (_SIZE - 1, flagged("Ġcall", special=False))))},
    ),
    "an id that tokens cannot have": (
        {},
        {"tokenizer.json": _PLAIN, **settings(**_decoder(*_LISTED, (_SIZE + 7, flagged("<sep>"))))},
    ),
    "special_tokens_map": (
        {},
        {
            "tokenizer.json": _PLAIN,
            "special_tokens_map.json": as_json(
                {
                    "bos_token": "<|endoftext|>",
                    "eos_token": flagged("<|im_end|>", lstrip=True),
                    "sep_token": "<sep>",
                    "additional_special_tokens": ["<img>"],
                }
            ),
            **settings(eos_token=None, chat_template=TEMPLATE),
        },
    ),
    "named tokens of one model": (
        {},
        {
            "tokenizer.json": _PLAIN,
            **settings(
                chat_template=NAMING,
                pad_token="<|endoftext|>",
                unk_token="<|endoftext|>",
                sep_token="<sep>",
                image_token="<img>",
                extra_special_tokens=["[PAD]"],
            ),
        },
    ),
    "named tokens in an object": (
        {},
        {
            "tokenizer.json": _PLAIN,
            **settings(chat_template=NAMING, extra_special_tokens={"image_token": "<img>"}, pad_token="[PAD]"),
        },
    ),
    "a named token that the json does not flag": (
        {},
        {
            "tokenizer.json": as_json(
                byte_level(
                    added_tokens=[{"id": at, **flagged(text, special=at < 2)} for at, text in enumerate(CONTROL)]
                )
            ),
            **settings(),
        },
    ),
    "a token that the json flags and the settings do not": (
        {},
        {
            "tokenizer.json": _PLAIN,
            **settings(eos_token="<|endoftext|>", **_decoder(*_LISTED[:2], (2, flagged("<|im_end|>", special=False)))),
        },
    ),
    "a named token that does not say whether it is normalized": (
        {},
        {
            "tokenizer.json": as_json(byte_level(added_tokens=[], normalizer={"type": "Lowercase"})),
            **settings(
                eos_token="<SEP>", **_decoder(*_LISTED, (_SIZE, {"content": "<SEP>"}), (_SIZE + 1, {"content": "B"}))
            ),
        },
    ),
    "padding that names a token": (
        {},
        {
            "tokenizer.json": as_json(
                byte_level(
                    padding={
                        "strategy": "BatchLongest",
                        "direction": "Right",
                        "pad_to_multiple_of": None,
                        "pad_id": 0,
                        "pad_type_id": 0,
                        "pad_token": "[PAD]",
                    }
                )
            ),
            **settings(chat_template=NAMING),
        },
    ),
    "tokens in objects and in two files": (
        {},
        {
            "tokenizer.json": _PLAIN,
            "special_tokens_map.json": as_json(
                {
                    "image_token": "<img>",
                    "additional_special_tokens": ["<pad>"],
                    "extra_special_tokens": [{"content": "<sep>", "rstrip": True}],
                }
            ),
            **settings(
                video_token="[PAD]",
                call_token={"__type": "AddedToken", **flagged("<tool_call>")},
                additional_special_tokens=[{"__type": "AddedToken", **flagged("<mask>", special=False)}],
            ),
        },
    ),
    "added_tokens beside a json that has them": (
        {},
        {
            "tokenizer.json": as_json(
                byte_level(added_tokens=[*byte_level()["added_tokens"], {"id": _SIZE, **flagged("<sep>", rstrip=True)}])
            ),
            "added_tokens.json": as_json({"<sep>": _SIZE}),
            **settings(),
        },
    ),
    "added_tokens and settings": (
        {},
        {
            "tokenizer.json": _PLAIN,
            "added_tokens.json": as_json({"<tool_call>": _SIZE, "<sep>": _SIZE + 1}),
            **settings(sep_token="<sep>", bos_token="<|endoftext|>"),
        },
    ),
    "a template for tools": (
        {},
        {
            "tokenizer.json": _PLAIN,
            **settings(
                chat_template=[
                    {"name": "default", "template": TEMPLATE},
                    {
                        "name": "tool_use",
                        "template": "\n  {% for t in tools %}\n{{ t.function.name }}\n  {% endfor %} \n"
                        + TEMPLATE
                        + "\n",
                    },
                ]
            ),
        },
    ),
    "templates in files": (
        {},
        {
            "tokenizer.json": _PLAIN,
            "chat_template.jinja": (TEMPLATE + "\n").encode(),
            "additional_chat_templates/tool_use.jinja": b"tools: {{ tools | length }}   \n",
            **settings(chat_template="old"),
        },
    ),
    "a post-processor in a sequence": (
        {},
        {
            "tokenizer.json": as_json(
                byte_level(
                    post_processor={
                        "type": "Sequence",
                        "processors": [byte_level()["post_processor"], _post("<|endoftext|>", "<|im_end|>")],
                    }
                )
            ),
            **settings(bos_token="<|endoftext|>", add_bos_token=False),
        },
    ),
    "add_bos_token beside a json": (
        {},
        {"tokenizer.json": _PLAIN, **settings(bos_token="<|endoftext|>", add_bos_token=True, add_prefix_space=True)},
    ),
    "Llama's class and a byte-level json": (
        {},
        {
            "tokenizer.json": _PLAIN,
            **settings(tokenizer_class="LlamaTokenizerFast", bos_token="<|endoftext|>", legacy=False),
        },
    ),
    "Llama's class and a json that prepends": (
        {},
        {
            "tokenizer.json": as_json(spaced("prepend")),
            **settings(tokenizer_class="LlamaTokenizer", eos_token="</s>", bos_token="<s>"),
        },
    ),
    "Llama's class and a json, legacy": (
        {},
        {
            "tokenizer.json": as_json(spaced("always")),
            **settings(tokenizer_class="LlamaTokenizer", eos_token="</s>", bos_token="<s>", legacy=True),
        },
    ),
    "a json that prepends": (
        {},
        {"tokenizer.json": as_json(spaced("prepend")), **settings(eos_token="</s>", bos_token="<s>")},
    ),
    "Qwen's class": (
        _QWEN,
        {
            "tokenizer.json": _PLAIN,
            **settings(tokenizer_class="Qwen2Tokenizer", pad_token="<|endoftext|>", chat_template=TEMPLATE),
        },
    ),
    "Qwen's class and added_tokens_decoder": (
        _QWEN,
        {
            "tokenizer.json": _PLAIN,
            **settings(
                tokenizer_class="Qwen2TokenizerFast",
                **_decoder(*_LISTED, (_SIZE, flagged("<tool_call>", special=False))),
                additional_special_tokens=["<|im_start|>", "<|im_end|>"],
            ),
        },
    ),
    "Qwen's family, another class": (_QWEN, {"tokenizer.json": _PLAIN, **settings(pad_token="<|endoftext|>")}),
    "GPT 2's class": (
        {},
        {"tokenizer.json": _PLAIN, **settings(tokenizer_class="GPT2Tokenizer", add_prefix_space=True)},
    ),
    "words and merges": (
        {"model_type": "qwen2"},
        {
            "vocab.json": as_json(byte_level()["model"]["vocab"]),
            "merges.txt": merges_file(byte_level()),
            **settings(tokenizer_class="Qwen2Tokenizer", **_decoder(*_LISTED)),
        },
    ),
    "merges that begin with a hash": (
        {"model_type": "qwen2"},
        {
            "vocab.json": as_json(byte_level()["model"]["vocab"] | {"##": _SIZE}),
            "merges.txt": merges_file(byte_level()) + b"# #\n",
            **settings(tokenizer_class="Qwen2Tokenizer"),
        },
    ),
    "pieces, Mistral, legacy is null": ({"model_type": "mistral"}, _llama(legacy=None)),
    "pieces, Mistral, normalized": (
        {"model_type": "mistral"},
        _llama(**_decoder(*_SPM_LISTED, (_PIECES, flagged("<|im_start|>", normalized=True)))),
    ),
    "pieces and an empty list of further tokens": (
        {},
        _llama(bos_token=None, extra_special_tokens=[]) | {"tokenizer.model": sentencepiece("<sep>")},
    ),
    "pieces and further tokens in special_tokens_map": (
        {},
        _llama() | {"special_tokens_map.json": as_json({"additional_special_tokens": ["<img>"]})},
    ),
    "pieces alone": ({}, {"tokenizer.model": sentencepiece()}),
    "pieces, BOS": ({}, _llama(add_bos_token=True, legacy=False, chat_template=TEMPLATE)),
    "pieces, BOS and EOS": ({}, _llama(add_bos_token=True, add_eos_token=True)),
    "pieces, nothing said": ({}, _llama()),
    "pieces, legacy": ({}, _llama(add_bos_token=True, legacy=True)),
    "pieces, no space": ({}, _llama(add_bos_token=True, add_prefix_space=False)),
    "pieces and added_tokens": (
        {},
        _llama(add_bos_token=True)
        | {"added_tokens.json": as_json({"<|im_start|>": _PIECES, "<|im_end|>": _PIECES + 1, "the": 3})},
    ),
    "pieces and added_tokens_decoder": (
        {},
        _llama(
            **_decoder(
                *_SPM_LISTED, (_PIECES, flagged("<|im_start|>")), (_PIECES + 1, flagged("<|im_end|>", rstrip=True))
            ),
            chat_template=TEMPLATE,
        ),
    ),
    "pieces, Mistral": ({"model_type": "mistral"}, _llama(add_bos_token=True)),
    "pieces, Mistral, not legacy": (
        {"model_type": "mistral"},
        _llama(
            add_bos_token=True,
            legacy=False,
            **_decoder(*_SPM_LISTED, (_PIECES, flagged("<|im_start|>", normalized=True))),
        ),
    ),
    "pieces of users": ({}, {"tokenizer.model": sentencepiece("<sep>", "cat", "▁▁")}),
    "pieces of users, Llama's class": (
        {},
        _llama(add_bos_token=True) | {"tokenizer.model": sentencepiece("<sep>", "cat")},
    ),
    "pieces renamed": (
        {"model_type": "mistral"},
        _llama(**_decoder(*_SPM_LISTED, (3, flagged("<|im_start|>")))) | {"tokenizer.model": sentencepiece("[unused]")},
    ),
    "pieces, Gemma": (
        {"model_type": "gemma"},
        {
            "tokenizer.model": sentencepiece("<mask>", "<pad>", normalizing={3: 0}),
            "tokenizer_config.json": as_json(
                {
                    "tokenizer_class": "GemmaTokenizer",
                    "bos_token": "<s>",
                    "eos_token": "</s>",
                    "unk_token": "<unk>",
                    "add_bos_token": True,
                    "mask_token": "<mask>",
                }
            ),
        },
    ),
}


def write_style(folder: Path, name: str) -> Path:
    """Write the folder of a style, without weights, and return it."""
    return write_files(folder, *STYLES[name])


def write_files(folder: Path, config: Mapping[str, Any], files: Mapping[str, bytes]) -> Path:
    """Write files and a ``config.json`` of Llama's family, whose keys ``config`` changes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(as_json({"model_type": "llama", **FAMILY_SIZES} | dict(config)))
    for file, content in files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(content)
    return folder


Rendered = Callable[[Sequence[Mapping[str, Any]] | None], str | None]


def observed(
    encode: Callable[[str], list[int]],
    decode: Callable[[list[int]], str],
    render: Rendered,
    eos: str | None,
    bos: str | None,
) -> dict[str, Any]:
    """Return all that is compared of a tokenizer: ids, texts, named tokens, and a conversation with and without tools."""
    ids = [encode(text) for text in TEXTS]
    return {
        "ids": ids,
        "texts": [decode(one) for one in ids],
        "eos": eos,
        "bos": bos,
        "chat": render(None),
        "chat with tools": render(TOOLS),
    }
