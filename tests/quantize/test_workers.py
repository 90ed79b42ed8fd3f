"""Test quantizing with several processes: the same bytes, and nothing left if one of them fails."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.errors import BundleError, EdgedecError, UnsupportedError
from edgedec.quantize.pipeline import QuantizeOptions, QuantizeReport, quantize
from edgedec.quantize.readers import Checkpoint, open_checkpoint
from edgedec.quantize.readers.checkpoint import Makers
from edgedec.workers import WorkerPool, open_pool
from tests.quantize.test_pipeline import SIZES, tensors, write

KINDS: dict[str, QuantizeOptions] = {
    "native": QuantizeOptions(method="ternary"),
    "absmean": QuantizeOptions(method="ternary"),
    "int8": QuantizeOptions(method="int8"),
    "planes": QuantizeOptions(method="ternary", planes=2, group_size=32),
    "float": QuantizeOptions(method="float"),
}
SUB_NORMS = {"self_attn.inner_attn_ln": "hidden_size", "mlp.ffn_layernorm": "intermediate_size"}


def sharded(folder: Path, contents: dict[str, NDArray[Any]], **config: Any) -> Path:
    """Write a checkpoint of three files, over which the tensors are spread in turn."""
    write(folder, contents, **config)
    (folder / "model.safetensors").unlink()
    files = [f"model-0000{at}-of-00003.safetensors" for at in (1, 2, 3)]
    places = {name: files[at % 3] for at, name in enumerate(sorted(contents))}
    for file in files:
        save_file({name: values for name, values in contents.items() if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def made(folder: Path, kind: str) -> Path:
    contents = tensors(ternary=kind == "native")
    if kind != "absmean":
        return sharded(folder, contents)
    for layer in range(SIZES["num_hidden_layers"]):
        for name, width in SUB_NORMS.items():
            size = SIZES["num_attention_heads"] * SIZES["head_dim"] if "attn" in name else SIZES[width]
            contents[f"model.layers.{layer}.{name}.weight"] = np.ones(size, np.float32)
    halves = {name: values.astype(np.float16) for name, values in contents.items()}
    return sharded(folder, halves, architectures=["BitnetForCausalLM"])


def run(source: Path | Checkpoint, output: Path, kind: str, pool: WorkerPool | None) -> QuantizeReport:
    checkpoint = open_checkpoint(source) if isinstance(source, Path) else source
    return quantize(checkpoint, output, KINDS[kind], vocab_limit=13, pool=pool)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """Start two processes for all of the module's tests that do not end them."""
    with open_pool("local", workers=2) as pool:
        yield pool


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("kind", list(KINDS))
def test_two_processes_write_the_same_bytes_as_one(tmp_path: Path, pool: WorkerPool, kind: str) -> None:
    source = made(tmp_path / "m", kind)
    run(source, tmp_path / "alone", kind, None)
    report = run(source, tmp_path / "pool", kind, pool)
    for name in ("manifest.json", "weights.bin"):
        assert (tmp_path / "pool" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    busy = kind != "float"
    assert bool(report.worker_bytes) == busy, "work that no other process did shows nothing"
    assert all(peak > 1 << 20 for peak in report.worker_bytes.values())


@pytest.mark.nightly
def test_ray_writes_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with open_pool("ray", workers=2) as pool:
        for kind in KINDS:
            source = made(tmp_path / kind, kind)
            run(source, tmp_path / f"{kind}-alone", kind, None)
            run(source, tmp_path / f"{kind}-ray", kind, pool)
            assert Bundle.open(tmp_path / f"{kind}-ray").sha256 == Bundle.open(tmp_path / f"{kind}-alone").sha256


LAST = "model.layers.1.mlp.down_proj.weight"


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 40)


@pytest.mark.parametrize(
    ("damage", "message"),
    [(cut, r"-of-00003\.safetensors: tensor .* is truncated"), (Path.unlink, r"cannot be read: No such file")],
)
def test_a_shard_damaged_while_it_is_read_is_an_error(
    tmp_path: Path, pool: WorkerPool, damage: Callable[[Path], None], message: str
) -> None:
    checkpoint = open_checkpoint(made(tmp_path / "m", "native"))
    for path in sorted((tmp_path / "m").glob("*.safetensors"))[1:]:
        damage(path)
    texts = []
    for workers in (None, pool):
        with pytest.raises(BundleError, match=message) as caught:
            run(checkpoint, tmp_path / "b", "native", workers)
        texts.append(str(caught.value))
        assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("method", ["ternary", "int8"])
def test_a_bad_tensor_is_named_like_without_workers(tmp_path: Path, pool: WorkerPool, method: str) -> None:
    contents = tensors(ternary=True)
    contents[LAST][3, 4] = 0.5 if method == "ternary" else np.nan
    checkpoint = open_checkpoint(sharded(tmp_path / "m", contents))
    texts = []
    for workers in (None, pool):
        with pytest.raises((BundleError, UnsupportedError), match=r"layers\.1\.mlp\.down_proj\.weight") as caught:
            quantize(checkpoint, tmp_path / "b", QuantizeOptions(method=method), vocab_limit=13, pool=workers)
        texts.append(f"{type(caught.value)} {caught.value}")
        assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert texts[0] == texts[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("end", "message"),
    [(partial(os._exit, 9), "ended with code 9"), (partial(signal.raise_signal, signal.SIGKILL), "killed by SIGKILL")],
)
def test_a_worker_that_dies_leaves_no_bundle(tmp_path: Path, end: Callable[[], Any], message: str) -> None:
    checkpoint = open_checkpoint(made(tmp_path / "m", "int8"))
    assert isinstance(checkpoint.read_tensor, Makers)
    deadly = replace(checkpoint, read_tensor=Makers({**checkpoint.read_tensor.by_name, LAST: end}))
    with open_pool("local", workers=2) as pool:
        with pytest.raises(EdgedecError, match=rf"its worker .*{message}"):
            run(deadly, tmp_path / "b", "int8", pool)
        assert [path.name for path in tmp_path.iterdir()] == ["m"]
        run(checkpoint, tmp_path / "b", "int8", pool)  # the next run finds workers again
    run(checkpoint, tmp_path / "alone", "int8", None)
    assert Bundle.open(tmp_path / "b").sha256 == Bundle.open(tmp_path / "alone").sha256


@pytest.mark.thorough
def test_a_full_disk_ends_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made(tmp_path / "m", "int8")
    add, count = BundleWriter.add, 0

    def full(*arguments: Any, **options: Any) -> None:
        nonlocal count
        count += 1
        if count == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(*arguments, **options)

    monkeypatch.setattr(BundleWriter, "add", full)
    before = set(multiprocessing.active_children())
    with (
        pytest.raises(EdgedecError, match="the disk is full; free some space"),
        open_pool("local", workers=2) as pool,
    ):
        run(source, tmp_path / "b", "int8", pool)
    assert set(multiprocessing.active_children()) <= before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


_INTERRUPTED = """
import signal, sys, time
from dataclasses import replace
from functools import partial
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
from edgedec.workers import open_pool
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.quantize.readers.checkpoint import Makers
if __name__ == "__main__":
    opened = open_checkpoint(Path(sys.argv[1]))
    slow = {**opened.read_tensor.by_name, "model.layers.1.mlp.up_proj.weight": partial(time.sleep, 300)}
    with open_pool("local", workers=2) as pool:
        quantize(replace(opened, read_tensor=Makers(slow)), Path(sys.argv[2]), QuantizeOptions(method="int8"),
                 vocab_limit=13, pool=pool, progress=lambda what, done, total: print(what, flush=True))
"""


def wait_until_gone(group: int) -> None:
    for _ in range(300):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("a worker outlived Ctrl-C")


@pytest.mark.thorough
def test_ctrl_c_ends_the_workers_and_leaves_nothing(tmp_path: Path) -> None:
    source = made(tmp_path / "m", "int8")
    child = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, str(source), str(tmp_path / "b")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    for line in child.stdout:
        if "layers.1.self_attn.o_proj" in line:  # the worker sleeps now, or is about to
            break
    began = time.monotonic()
    os.killpg(child.pid, signal.SIGINT)  # a terminal sends it to all of them
    child.wait(timeout=120)
    child.stdout.close()
    assert time.monotonic() - began < 120, "it waited for the worker"
    assert child.returncode != 0
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    wait_until_gone(child.pid)
