"""Compare the tokenizers of folders of many styles with what transformers' AutoTokenizer makes of them.

The first ring compares with ids that transformers 5.24 gave, ``-m compare`` with the library itself. To record them again:
RECORD_FOLDERS=1 pytest -m compare tests/quantize/readers/tokenizers/test_folders.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgedec.quantize.readers.tokenizers.folder import read_folder_tokenizer
from edgedec.runtime.text.chat_template import render
from edgedec.runtime.text.tokenizer import Tokenizer
from tests.quantize.readers.tokenizers.support.folder_styles import FAMILY_SIZES, STYLES, TURNS, observed, write_style

RECORDED = Path(__file__).parent / "support" / "recorded_folders.json"


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


@pytest.mark.parametrize("style", STYLES)
def test_folders_are_read_as_transformers_reads_them(tmp_path: Path, style: str) -> None:
    expected = json.loads(RECORDED.read_text("utf-8"))[style]
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
    recorded = json.loads(RECORDED.read_text("utf-8")) if RECORDED.exists() else {}
    if os.environ.get("RECORD_FOLDERS"):
        RECORDED.write_text(json.dumps(recorded | {style: found}, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")
    else:
        assert recorded[style] == found
