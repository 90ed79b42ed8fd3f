"""Test that a tokenizer is written as GGUF only if llama.cpp cuts texts as the bundle does."""

from __future__ import annotations

import logging
import unicodedata
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.embedded import bundle_folder
from edgedec.errors import UnsupportedError
from edgedec.quantize.exporters.gguf.export import export_gguf
from edgedec.quantize.readers import open_checkpoint
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.same_tokens import TEXTS, added_texts
from tests.quantize.exporters.support.tokenizer_styles import REFUSED, STYLES, write_bundle


@pytest.mark.thorough(sample=15)
@pytest.mark.parametrize("style", STYLES)
def test_a_style_is_written_or_refused_by_name(tmp_path: Path, style: str) -> None:
    bundle = write_bundle(tmp_path / "b", STYLES[style]())
    if style in REFUSED:
        with pytest.raises(UnsupportedError, match=REFUSED[style]):
            export_gguf(bundle, tmp_path / "m.gguf")
        assert [path.name for path in tmp_path.iterdir()] == ["b"]
    else:
        export_gguf(bundle, tmp_path / "m.gguf")


@pytest.mark.compare
@pytest.mark.parametrize("style", sorted(STYLES.keys() - REFUSED.keys()))
def test_llama_cpp_gives_the_ids_of_the_bundle(tmp_path: Path, caplog: pytest.LogCaptureFixture, style: str) -> None:
    pytest.importorskip("xllamacpp")
    from tests.support.llama_cpp import Model

    bundle = write_bundle(tmp_path / "b", STYLES[style]())
    with caplog.at_level(logging.WARNING):
        export_gguf(bundle, tmp_path / "m.gguf")
    model, words = Model(tmp_path / "m.gguf", vocab_only=True), Tokenizer.from_file(str(bundle.tokenizer_file))
    composed, spaced = "which llama.cpp does not do" in caplog.text, "is a space in llama.cpp" in caplog.text
    different = {
        text: (model.encode(text), words.encode(text).ids)
        for text in [*TEXTS, *added_texts(words)]
        if not (composed and not unicodedata.is_normalized("NFC", text)) and not (spaced and "\u2581" in text)
    }
    assert {text: ids for text, ids in different.items() if ids[0] != ids[1]} == {}
    assert set(bundle.tokens.eos) <= set(model.ends())


@pytest.mark.compare
@pytest.mark.parametrize("options", [{"matrix_type": "f16"}, {"trit_type": "F16"}, {}])
def test_llama_cpp_writes_the_embedded_models_text(tmp_path: Path, options: dict[str, str]) -> None:
    """Every type of the embedded model's matrices loads there, and the first tokens of a story are the same."""
    pytest.importorskip("xllamacpp")
    from tests.support.llama_cpp import Model

    bundle = Bundle.open(bundle_folder("demo"))
    export_gguf(bundle, tmp_path / "m.gguf", **options)  # type: ignore[arg-type]
    with Session.open("demo") as session:
        answer = session.generate("Once upon a time, there", n_predict=8, sampling=SamplingConfig(temperature=0))
        ids = session.encode("Once upon a time, there").tolist()
    model, theirs = Model(tmp_path / "m.gguf"), list[int]()
    for _ in answer.tokens:
        theirs.append(int(model.logits([*ids, *theirs])[-1].argmax()))
    assert theirs == answer.tokens


@pytest.mark.parametrize("scheme", ["first", "always"])
def test_the_spaces_of_llama_cpp_may_be_accepted(tmp_path: Path, caplog: pytest.LogCaptureFixture, scheme: str) -> None:
    bundle = write_bundle(tmp_path / "b", STYLES[f"metaspace {scheme}"]())
    with caplog.at_level(logging.WARNING):
        export_gguf(bundle, tmp_path / "m.gguf", their_spaces=True)
    assert "such texts get other tokens there" in caplog.text
    ours = Tokenizer.from_file(str(bundle.tokenizer_file))
    theirs = Tokenizer.from_str(open_checkpoint(tmp_path / "m.gguf").tokenizer_json)
    same = [text for text in TEXTS if "<s>" not in text and "</s>" not in text and not text.startswith((" ", "\u2581"))]
    assert len(same) > 200
    assert {text for text in same if ours.encode(text).ids != theirs.encode(text).ids} <= {""}
    assert ours.encode(" a").ids != theirs.encode(" a").ids


@pytest.mark.parametrize("style", sorted(style for style in REFUSED if "metaspace" not in style))
def test_the_spaces_of_llama_cpp_accept_nothing_else(tmp_path: Path, style: str) -> None:
    with pytest.raises(UnsupportedError, match=REFUSED[style]):
        export_gguf(write_bundle(tmp_path / "b", STYLES[style]()), tmp_path / "m.gguf", their_spaces=True)
