"""Messages about paths that lead nowhere say what the path may have been meant to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.missing import nothing_at
from edgedec.errors import UsageError
from edgedec.quantize.readers import open_checkpoint

HUB = "download the model first and give its folder, because edgedec makes no network connection"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "name", ["meta-llama/Llama-3.2-1B", "google/gemma-2b", "hf.co/a/b", "huggingface.co/meta-llama/Llama-3.2-1B"]
)
@pytest.mark.parametrize("what", ["bundle", "checkpoint", "tokenizer"])
def test_a_name_on_the_hub(name: str, what: str) -> None:
    message = nothing_at(Path(name), what)  # type: ignore[arg-type]
    assert message.startswith(f"{name}: no such {what}; if it is a name on the Hugging Face Hub, {HUB}")


@pytest.mark.parametrize(
    "name", ["story", "models/story.gguf", "here/story", "/a/b", "a/b/c", "../a/b", "a b/c", "hf.co"]
)
def test_a_path_is_no_name_on_the_hub(name: str) -> None:
    Path("here").mkdir()
    assert nothing_at(Path(name), "checkpoint") == f"{name}: no such checkpoint; check the spelling of the path"


def test_an_embedded_model_in_the_wrong_place() -> None:
    with pytest.raises(
        UsageError, match=r"demo-int8: no such bundle; the embedded model is named without a folder: demo-int8$"
    ):
        Bundle.open("./demo-int8")
    with pytest.raises(
        UsageError, match=r"demo: no such checkpoint; demo is the embedded model's bundle, .* generate -m demo "
    ):
        open_checkpoint(Path("demo"))


def test_the_next_command_can_be_pasted() -> None:
    assert nothing_at(Path("my model"), "bundle").endswith("make one with: edgedec quantize CHECKPOINT -o 'my model'")
