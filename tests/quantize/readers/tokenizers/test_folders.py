"""Compare the tokenizers of folders of many styles with what transformers' AutoTokenizer makes of them.

The first ring compares with ids that transformers 5.24 gave, ``-m compare`` with the library itself. To record them again:
RECORD_FOLDERS=1 pytest -m compare tests/quantize/readers/tokenizers/test_folders.py
"""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgedec.errors import UnsupportedError
from edgedec.quantize.readers.tokenizers.byte_tokenizer import CUTS
from edgedec.quantize.readers.tokenizers.folder import read_folder_tokenizer
from edgedec.runtime.text.chat_template import render
from edgedec.runtime.text.tokenizer import Tokenizer
from tests.quantize.readers.tokenizers.support.folder_styles import (
    CONTROL,
    FAMILY_SIZES,
    STYLES,
    TURNS,
    as_json,
    byte_level,
    flagged,
    merges_file,
    observed,
    sentencepiece,
    settings,
    write_files,
    write_style,
)

RECORDED = Path(__file__).parent / "support" / "recorded_folders.json.xz"


def ours(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text())
    read = read_folder_tokenizer(folder, FAMILY_SIZES["vocab_size"], config)
    tokenizer = Tokenizer(read.checked.json)
    bos, eos = read.token_id("bos_token"), read.token_id("eos_token")
    template = read.chat_template(bos, eos)

    def rendered(tools: Sequence[Mapping[str, Any]] | None) -> str | None:
        if template is None:
            return None
        return render(
            template,
            TURNS,
            bos_token=None if bos is None else tokenizer.token_of(bos),
            eos_token=None if eos is None else tokenizer.token_of(eos),
            add_generation_prompt=True,
            tools=tools,
        )

    return observed(
        lambda text: tokenizer.encode(text).tolist(),
        tokenizer.decode,
        rendered,
        read.names.get("eos_token"),
        read.names.get("bos_token"),
    )


@pytest.mark.thorough(sample=15)
@pytest.mark.parametrize("style", STYLES)
def test_folders_are_read_as_transformers_reads_them(tmp_path: Path, style: str) -> None:
    expected = json.loads(lzma.decompress(RECORDED.read_bytes()))[style]
    found = ours(write_style(tmp_path / "a folder", style))
    for key in expected:
        assert found[key] == expected[key], key


@pytest.mark.compare
@pytest.mark.parametrize("style", STYLES)
def test_what_was_recorded_is_what_transformers_does(
    tmp_path: Path, style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    theirs = transformers.AutoTokenizer.from_pretrained(str(write_style(tmp_path / "folder", style)))

    def rendered(tools: Sequence[Mapping[str, Any]] | None) -> str | None:
        if theirs.chat_template is None:
            return None
        text = theirs.apply_chat_template(TURNS, tools=tools, tokenize=False, add_generation_prompt=True)
        return str(text)

    found = observed(
        lambda text: list(theirs.encode(text)),
        lambda ids: str(theirs.decode(ids, skip_special_tokens=True)),
        rendered,
        theirs.eos_token,
        theirs.bos_token,
    )
    recorded = json.loads(lzma.decompress(RECORDED.read_bytes())) if RECORDED.exists() else {}
    if os.environ.get("RECORD_FOLDERS"):
        text = json.dumps(recorded | {style: found}, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        RECORDED.write_bytes(lzma.compress(f"{text}\n".encode(), preset=9 | lzma.PRESET_EXTREME))
    else:
        assert recorded[style] == found


def unigram(**kinds: int) -> bytes:
    """Return a unigram model in which some pieces are of other kinds."""
    return sentencepiece(training={3: 1}, kinds=kinds)


def words() -> dict[str, bytes]:
    tree = byte_level()
    return {"vocab.json": as_json(tree["model"]["vocab"]), "merges.txt": merges_file(tree)}


@pytest.mark.parametrize(
    ("files", "note"),
    [
        (
            {"tokenizer.model": sentencepiece(), **settings(tokenizer_class="GemmaTokenizer", eos_token="</s>")},
            "transformers takes '<bos>' as bos_token, which no file has; it is left out",
        ),
        (
            {"tokenizer.model": unigram(), **settings(clean_up_tokenization_spaces=True)},
            "clean_up_tokenization_spaces is true, and is not followed",
        ),
        (
            {
                "tokenizer.model": sentencepiece(),
                **settings(sep_token={"__type": "AddedToken", **flagged("<sep>", normalized=True)}),
            },
            "the token '<sep>' is found in the text itself",
        ),
        ({"tokenizer.model": unigram(king=5), **settings()}, "unused pieces stay unused, as in SentencePiece"),
        ({**words(), **settings(tokenizer_class="Qwen3_5Tokenizer")}, "Qwen3_5Tokenizer reads no vocab.json"),
        (
            {"tokenizer.json": as_json(byte_level()), **settings(image_token={"content": "<img>"})},
            "the settings 'image_token' are not known",
        ),
        (
            {
                "tokenizer.json": as_json(byte_level()),
                "chat_template.json": as_json({"chat_template": "other"}),
                **settings(chat_template="own"),
            },
            "replaces the chat template of tokenizer_config.json",
        ),
    ],
)
def test_what_differs_from_transformers_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, files: Mapping[str, bytes], note: str
) -> None:
    read_folder_tokenizer(write_files(tmp_path / "folder", {}, files), FAMILY_SIZES["vocab_size"])
    assert note in caplog.text


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({**words(), **settings(tokenizer_class="GemmaTokenizer")}, r"GemmaTokenizer reads no vocab\.json"),
        ({"tokenizer.model": unigram(k=5), **settings()}, r"the piece 'k' is unused, but SentencePiece meets it"),
        ({"tokenizer.model": sentencepiece(kinds={"ki": 5})}, r"the piece 'ki' is unused, but SentencePiece meets it"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, files: Mapping[str, bytes], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read_folder_tokenizer(write_files(tmp_path / "folder", {}, files), FAMILY_SIZES["vocab_size"])


def test_a_folder_as_qwen_s_owners_save_it_gives_no_note(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    words = byte_level(
        normalizer={"type": "NFC"}, pre_tokenizer=CUTS["qwen2"], decoder=by_bytes, post_processor=by_bytes
    )
    words["model"] |= {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    settings = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {str(at): flagged(text) for at, text in enumerate(CONTROL)},
        "additional_special_tokens": list(CONTROL[1:]),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": CONTROL[2],
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": CONTROL[0],
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert read_folder_tokenizer(tmp_path, FAMILY_SIZES["vocab_size"], {"model_type": "qwen3"}).names == {
        "eos_token": CONTROL[2],
        "pad_token": CONTROL[0],
    }
    assert caplog.text == ""
