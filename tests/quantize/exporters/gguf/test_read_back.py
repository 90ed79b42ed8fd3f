"""Test what is read back of an exported GGUF file besides the ids of texts."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from edgedec.errors import UnsupportedError
from edgedec.quantize.exporters.gguf.export import export_gguf
from edgedec.quantize.exporters.gguf.tokenizer import vocabulary
from edgedec.quantize.readers import open_checkpoint
from edgedec.quantize.readers.gguf.header import read_header
from edgedec.quantize.readers.tokenizers.byte_tokenizer import CUTS, IGNORES_MERGES
from edgedec.quantize.tokenizer_identity import tokenizer_identity
from tests.quantize.exporters.support.tokenizer_styles import REFUSED, STYLES, pieces, write_bundle


def test_three_ends_and_the_template_are_kept(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "b", STYLES["llama 3"](), eos=(2, 70, 50), template="{{ bos_token }}")
    export_gguf(bundle, tmp_path / "m.gguf")
    read = open_checkpoint(tmp_path / "m.gguf")
    assert (read.bos_token_id, set(read.eos_token_ids)) == (0, {2, 50, 70})
    assert read.eos_token_ids[0] == 2
    assert read.chat_template == "{{ bos_token }}"


def test_a_fourth_end_is_refused_unless_its_text_says_it(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"4 tokens end its texts, and a GGUF names three; '.*' would be lost"):
        export_gguf(write_bundle(tmp_path / "b", STYLES["llama 3"](), eos=(2, 70, 50, 1)), tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()
    export_gguf(write_bundle(tmp_path / "c", STYLES["llama 3"](), eos=(70, 50, 1, 2)), tmp_path / "m.gguf")


def test_an_end_that_llama_cpp_adds_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        export_gguf(write_bundle(tmp_path / "b", STYLES["gpt-2"](), eos=(50,)), tmp_path / "m.gguf")
    assert "in llama.cpp a text also ends at '<|im_end|>', and in this model it does not" in caplog.text


@pytest.mark.thorough
@pytest.mark.parametrize(("style", "end"), [("gpt-2", 11), ("llama 2", 2)])
def test_a_model_without_ends_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture, style: str, end: int) -> None:
    with caplog.at_level(logging.WARNING):
        export_gguf(write_bundle(tmp_path / "b", STYLES[style](), eos=()), tmp_path / "m.gguf")
    assert f"no token ends a text; llama.cpp ends one at token {end}" in caplog.text


def test_a_changed_tokenizer_is_refused_and_nothing_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write_bundle(tmp_path / "b", STYLES["llama 2"]())
    right = vocabulary(bundle)
    wrong = right | {"tokenizer.ggml.scores": [0.0] * len(right["tokenizer.ggml.scores"])}  # type: ignore[arg-type]
    monkeypatch.setattr("edgedec.quantize.exporters.gguf.export.vocabulary", lambda _: wrong)
    with pytest.raises(UnsupportedError, match=r"would be .* instead of .*; llama.cpp joins any two pieces to a third"):
        export_gguf(bundle, tmp_path / "m.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_padding_that_two_tokens_join_to_is_refused(tmp_path: Path) -> None:
    tree = pieces()
    size = len(tree["model"]["vocab"])
    tree["model"]["vocab"] |= {"[PA": size, f"D{size + 2}]": size + 1}
    with pytest.raises(UnsupportedError, match=rf"llama.cpp would join the tokens '\[PA' and 'D{size + 2}]' to"):
        export_gguf(write_bundle(tmp_path / "b", tree), tmp_path / "m.gguf")


@pytest.mark.parametrize(("style", "ignores"), [("llama 3", True), ("llama 3 with merges", False)])
def test_the_name_of_the_split_treats_merges_as_the_tokenizer(tmp_path: Path, style: str, ignores: bool) -> None:
    export_gguf(write_bundle(tmp_path / "b", STYLES[style]()), tmp_path / "m.gguf")
    alike = [name for name, cut in CUTS.items() if cut == CUTS["llama-bpe"]]
    exact = [name for name in alike if (name in IGNORES_MERGES) == ignores]
    assert read_header(tmp_path / "m.gguf").metadata["tokenizer.ggml.pre"] in (exact or alike)


@pytest.mark.parametrize(("folder", "name"), [("Phi-3-mini", None), ("my", "my")])
def test_a_name_that_changes_llama_cpp_is_left_out(tmp_path: Path, folder: str, name: str | None) -> None:
    export_gguf(write_bundle(tmp_path / folder, STYLES["gpt-2"]()), tmp_path / "m.gguf")
    assert read_header(tmp_path / "m.gguf").metadata.get("general.name") == name


@pytest.mark.parametrize("style", sorted(STYLES.keys() - REFUSED.keys()))
def test_a_draft_of_the_bundle_fits_the_model_in_the_file(tmp_path: Path, style: str) -> None:
    bundle = write_bundle(tmp_path / "b", STYLES[style]())
    export_gguf(bundle, tmp_path / "m.gguf")
    own = tokenizer_identity(bundle.tokenizer_file.read_text("utf-8"))
    assert tokenizer_identity(open_checkpoint(tmp_path / "m.gguf").tokenizer_json) == own
