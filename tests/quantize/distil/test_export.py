"""Test that the checkpoint of a student holds the values of its last forward pass."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from edgedec.errors import EdgedecError, UsageError
from edgedec.quantize.distil import ternary as ternary_module
from edgedec.quantize.distil import torch_graph
from edgedec.quantize.distil.export import check_output, round_dense, write_checkpoint
from edgedec.quantize.distil.run_folder import RunFolder
from edgedec.quantize.distil.torch_graph import Ternary, TorchGraph
from edgedec.quantize.readers import open_checkpoint
from tests.edgedec.cli.support.make_known_model import byte_tokenizer
from tests.quantize.distil.support.make_teachers import CONFIG, model, some_ids, tensors

pytestmark = pytest.mark.compare


def write(student: TorchGraph, folder: Path) -> Path:
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = byte_tokenizer().to_str()
    write_checkpoint(student, folder, config=CONFIG, tokenizer_json=tokenizer, tokenizer_config=settings)
    return folder


@pytest.mark.parametrize("group_size", [0, 32])
def test_ternary_matrices_are_those_of_the_last_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_size: int
) -> None:
    student = model(ternary=Ternary(group_size=group_size))
    rounded: list[torch.Tensor] = []

    def fake(weight: torch.Tensor, size: int) -> torch.Tensor:
        rounded.append(ternary_module.fake_ternary(weight, size).detach())
        return rounded[-1]

    monkeypatch.setattr(torch_graph, "fake_ternary", fake)
    student(some_ids())
    stored = tensors(write(student, tmp_path / "out"))
    assert len(rounded) == len(student.ternary_names) == 14
    for name, value in zip(student.ternary_names, rounded, strict=True):
        assert np.array_equal(stored[name], value.numpy()), name


@pytest.mark.parametrize("ternary", [None, Ternary()])
def test_other_tensors_are_rounded_to_bfloat16(tmp_path: Path, ternary: Ternary | None) -> None:
    student = model(ternary=ternary)
    stored = tensors(write(student, tmp_path / "out"))
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "bfloat16"
    exact = {name: value.detach().clone() for name, value in student.tensors.items()}
    round_dense(student)
    for name, value in student.tensors.items():
        if ternary and name in student.ternary_names:
            assert torch.equal(value, exact[name])
            continue
        assert stored[name].dtype == ml_dtypes.bfloat16
        assert np.array_equal(stored[name].astype(np.float32), value.detach().numpy())
        assert not torch.equal(value, exact[name])


@pytest.mark.parametrize("ternary", [None, Ternary()])
def test_special_tokens_are_kept(tmp_path: Path, ternary: Ternary | None) -> None:
    opened = open_checkpoint(write(model(ternary=ternary), tmp_path / "out"))
    assert (opened.bos_token, opened.bos_token_id, opened.eos_token_ids) == ("<s>", 256, (257,))


@pytest.mark.parametrize("ternary", [None, Ternary()])
def test_a_full_disk_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ternary: Ternary | None
) -> None:
    def full(path: Path, *rest: Any, **named: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(EdgedecError, match=r"cannot write .*out: the disk is full; free some space"):
        write(model(ternary=ternary), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# --- before a run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "folder", "float checkpoint"])
@pytest.mark.parametrize("with_run", [False, True])
def test_an_output_of_another_program_is_refused_before_training(tmp_path: Path, kind: str, with_run: bool) -> None:
    output, folder = tmp_path / "out", RunFolder(path=tmp_path / "out.run")
    match kind:
        case "file":
            output.write_text("")
        case "folder":
            output.mkdir()
            (output / "thesis.txt").write_text("precious")
        case _:
            write(model(), output)
    if with_run:
        folder.begin({})
    with pytest.raises(
        UsageError, match=r"cannot write .*out: it exists, and was not made by a run in .*out\.run; choose"
    ):
        check_output(output, folder, tmp_path / "teacher", model(ternary=Ternary()))


@pytest.mark.parametrize("kind", ["empty", "link to an empty folder", "link to nothing yet"])
def test_an_empty_folder_is_filled(tmp_path: Path, kind: str) -> None:
    output, folder = tmp_path / "out", RunFolder(path=tmp_path / "out.run")
    place = output if kind == "empty" else tmp_path / "place"
    if kind != "link to nothing yet":
        place.mkdir()
    if output != place:
        output.symlink_to("place")
    check_output(output, folder, tmp_path / "teacher", model(ternary=Ternary()))
    write(model(ternary=Ternary()), output)
    assert (place / "config.json").is_file()
    assert output.is_symlink() == (output != place)


@pytest.mark.parametrize("leads_to", ["out", "no disk/student"])
def test_a_link_to_nothing_is_refused_before_training(tmp_path: Path, leads_to: str) -> None:
    (tmp_path / "out").symlink_to(leads_to)
    with pytest.raises(UsageError, match=r"cannot write .*out: it is a link"):
        check_output(tmp_path / "out", RunFolder(path=tmp_path / "out.run"), tmp_path / "teacher", model())


def test_the_output_of_a_run_may_be_overwritten_by_it(tmp_path: Path) -> None:
    student, folder = model(ternary=Ternary()), RunFolder(path=tmp_path / "out.run")
    output = write(student, tmp_path / "out")
    with pytest.raises(UsageError, match="was not made by a run"):
        check_output(output, folder, tmp_path / "teacher", student)
    folder.begin({})
    check_output(output, folder, tmp_path / "teacher", student)
    with pytest.raises(UsageError, match="out: it is the teacher"):
        check_output(output, folder, output, student)


def test_a_disk_that_is_too_small_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    output = tmp_path / "not" / "yet" / "out"
    with pytest.raises(EdgedecError, match=r"checkpoints need .* KiB, the disk has 1000 B free; free some space"):
        check_output(output, RunFolder(path=tmp_path / "out.run"), tmp_path / "teacher", model())
