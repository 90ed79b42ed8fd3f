"""The device ``interpreter`` answers to its earlier name, ``reference``, and is listed by its name of today alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from edgedec import device as accelerators
from edgedec.cli.completion import words
from edgedec.cli.options import Device
from edgedec.device import current_name, device_argument, device_names, device_options, open_device
from edgedec.errors import UsageError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime import targets
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.driver.recording_file import RecordingReader
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.answer import Answer
from edgedec.runtime.session.session import Session
from edgedec.sim.devices.interpreter import InterpreterDevice
from tests.sim.support.make_small_top import CONFIG

MODEL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
OPTIONS = AcceleratorOptions(overrides={"slots": 4})
PROMPT = np.array([5, 9, 12], np.int32)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("earlier-name") / "model.edgedec"
    write_random_bundle(path, MODEL, "ternary")
    return path


def answer(bundle: Path, device: str, options: AcceleratorOptions = OPTIONS) -> Answer:
    with Session.open(bundle, device=device, accelerator=options) as session:
        return session.generate(PROMPT, n_predict=4, sampling=SamplingConfig(temperature=0), ignore_eos=True)


def test_the_earlier_name_opens_the_device() -> None:
    device = open_device("reference", CONFIG)
    assert isinstance(device, InterpreterDevice)
    assert device.name == "interpreter"
    assert device_options("reference") == device_options("interpreter")
    assert device_argument("reference") is device_argument("interpreter") is None


@pytest.mark.thorough
def test_a_session_of_the_earlier_name_writes_the_same(bundle: Path) -> None:
    assert targets.is_accelerator("reference")
    assert targets.host_device("reference") == "cpu"
    earlier, today = answer(bundle, "reference"), answer(bundle, "interpreter")
    assert earlier.tokens == today.tokens
    facts = [one.timings.as_json()["accelerator"] for one in (earlier, today)]
    assert [one["device"] for one in facts] == ["interpreter", "interpreter"]
    assert [one["kind"] for one in facts] == ["estimated", "estimated"]


@pytest.mark.thorough
def test_a_recording_that_has_the_earlier_name_opens(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "session.rec"
    with monkeypatch.context() as patch:
        patch.setattr(InterpreterDevice, "name", "reference")
        recorded = answer(bundle, "interpreter", replace(OPTIONS, record=file))
    reader = RecordingReader(file)
    assert reader.header.device == "reference"
    reader.close()
    replayed = answer(bundle, f"replay:{file}")
    assert replayed.tokens == recorded.tokens
    assert replayed.timings.as_json()["accelerator"]["kind"] == "estimated"


def test_lists_and_suggestions_have_the_name_of_today_alone() -> None:
    (help_text,) = [option.help or "" for option in get_args(Device)[1:]]
    in_help = re.findall(r"[a-z_]+", help_text)
    for listed in (device_names(), targets.device_names(), words()["--device"], in_help):
        assert "interpreter" in listed
        assert "reference" not in listed
    for misspelt in ("interpretor", "refrence", "referenc"):
        with pytest.raises(UsageError, match="known: ") as refusal:
            open_device(misspelt, CONFIG)
        assert "reference'" not in str(refusal.value).replace("float_reference", "")
        assert "reference," not in str(refusal.value).replace("float_reference", "")
    with pytest.raises(UsageError, match="did you mean 'interpreter'"):
        open_device("interpretor", CONFIG)


@pytest.mark.parametrize("device", ["reference:x", "interpreter:x"])
def test_refusals_have_the_name_of_today(bundle: Path, device: str) -> None:
    with pytest.raises(UsageError, match="--device interpreter takes no file: write interpreter"):
        answer(bundle, device)
    with pytest.raises(UsageError, match="device interpreter has no option 'memory'"):
        open_device(device.partition(":")[0], CONFIG, memory="ddr")


def test_every_earlier_name_stands_for_a_device_and_hides_none() -> None:
    for earlier, today in accelerators._EARLIER_NAMES.items():
        assert today in device_names()
        assert earlier not in targets.device_names()
        assert current_name(today) == today
