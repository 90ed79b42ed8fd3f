"""Compare texts whose values are in a file with those in memory, to the bit, and break the disk while texts are written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.calibrated_bundle import write_calibrated
from edgedec.errors import BudgetError, DeviceError
from edgedec.quantize.synthetic.random_bundle import SHAPES, write_random_bundle
from edgedec.runtime.cache.arena import ArenaState
from edgedec.runtime.engine.spill import SpillFolder
from edgedec.runtime.kernels.attention.value_file import value_room
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.row_recipe import CAUSAL
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.answer import Piece
from edgedec.runtime.session.conversation import Conversation
from edgedec.runtime.session.session import Session
from edgedec.runtime.target_request import TargetRequest
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._cpu import CpuTarget
from edgedec.runtime.targets.onnx import footprint, memories
from tests.runtime.test_windowed_texts import SMALL
from tests.support.make_policies import MAKERS

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")
SIZES = SMALL | {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": None, "num_hidden_layers": 2}
CONTEXT, HEAD_DIM = 256, 24
LIMITS = Limits(nodes=32, depth=0, positions=CONTEXT)
KINDS = ["nosa", "shadowkv"]  # policies that have values in a file
PROMPT = "Once upon a time there was a dog. " * 6
GREEDY = SamplingConfig(temperature=0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    tokenizer = (demo.bundle_path("demo") / "tokenizer.json").read_text("utf-8")
    write_random_bundle(folder / "plain", {**SHAPES["demo"], **SIZES}, tokenizer_json=tokenizer)
    bundle = Bundle.open(folder / "plain")
    for kind in KINDS:
        write_calibrated(bundle, folder / kind, MAKERS[kind](bundle))
    return {kind: folder / kind for kind in KINDS}


def opened(model: Path, value_rows: int | None, kv_bits: int | None = None) -> CpuTarget:
    limits = replace(LIMITS, value_rows=value_rows)
    target = open_target(Bundle.open(model), limits=limits, threads=1, kv_bits=kv_bits)
    assert isinstance(target, CpuTarget)
    return target


def read(target: CpuTarget, pieces: list[int]) -> tuple[ArenaState, list[bytes]]:
    """Read random tokens in pieces, and return the sequence and the logits of each piece."""
    state, at, logits = target.open(LIMITS), 0, []
    assert isinstance(state, ArenaState)
    ids = np.random.default_rng(5).integers(0, target.bundle.tokens.size, CONTEXT).astype(np.int32)
    for size in pieces:
        positions = np.arange(at, at + size, dtype=np.int32)
        (result,) = target.submit([(state, Pass(ids=ids[at : at + size], positions=positions))]).result()
        state.commit(np.arange(size, dtype=np.int32))
        logits.append(result.logits.tobytes())
        at += size
    return state, logits


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("bits", [32, 16, 8, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_in_memory_change_no_bit(models: dict[str, Path], kind: str, bits: int) -> None:
    pieces = [32, 32, 16, 1, 1, 1, 30, 1]
    in_memory = opened(models[kind], CONTEXT, kv_bits=bits)
    assert in_memory.values_file is None
    expected = read(in_memory, pieces)[1]
    for value_rows in (0, 1, 20, 48, None, CONTEXT - 1):
        target = opened(models[kind], value_rows, kv_bits=bits)
        assert target.values_file is not None
        assert read(target, pieces)[1] == expected, value_rows
        counts = target.key_counts
        assert counts is not None
        assert counts.kept + counts.fetched == counts.read
        assert counts.fetched_bytes >= counts.fetched * HEAD_DIM * bits // 8
        assert (counts.kept == 0) == (value_rows == 0)
        if value_rows is not None:
            assert (counts.fetched == 0) == (value_rows == CONTEXT - 1)


def test_the_text_of_a_tree_goes_back_forks_and_moves_with_its_values(models: dict[str, Path], tmp_path: Path) -> None:
    """Each way leads to the same rows, so that the last logits are those of a text that was read in one piece."""
    target = opened(models["nosa"], 10)
    expected = read(target, [32, 20, 1])[1][-1]
    ids = np.random.default_rng(5).integers(0, target.bundle.tokens.size, CONTEXT).astype(np.int32)

    def last(state: ArenaState) -> bytes:
        work = Pass(ids=ids[52:53], positions=np.array([52], np.int32))
        return target.submit([(state, work)]).result()[0].logits.tobytes()

    state = read(target, [32, 20])[0]
    assert last(state) == expected
    state.close()
    longer = read(target, [32, 32, 3])[0]
    assert longer.truncate(52) == 52
    fork = longer.fork()  # its last block is shared, and copied by the first pass
    assert last(fork) == last(longer) == expected
    fork.close()
    longer.close()

    tree = read(target, [32])[0]  # the second row of each pair is on the path
    rows = np.repeat(np.arange(32, 48), 2)
    words = [sum(1 << (2 * at + 1) for at in range(row // 2)) | 1 << row for row in range(32)]
    wrong = ids[rows].copy()
    wrong[::2] += 1
    work = Pass(ids=wrong, positions=rows.astype(np.int32), visible=np.array(words, np.uint64)[:, None])
    target.submit([(tree, work)])
    tree.commit(np.arange(1, 32, 2, dtype=np.int32))
    work = Pass(ids=ids[48:52], positions=np.arange(48, 52, dtype=np.int32))
    target.submit([(tree, work)])
    tree.commit(np.arange(4, dtype=np.int32))
    assert last(tree) == expected

    with SpillFolder(tmp_path, model="m") as disk:
        spilled = disk.write(ids[:52].tolist(), tree, CAUSAL)
        other = target.open(LIMITS)
        assert isinstance(other, ArenaState)
        disk.read(spilled, other, 52, CAUSAL)
        assert last(other) == expected


# --- a disk that fails ------------------------------------------------------------------------------------------------


def full(descriptor: int) -> None:
    os.dup2(os.open("/dev/full", os.O_RDWR), descriptor)


def shorter(descriptor: int) -> None:
    os.ftruncate(descriptor, 100)


def broken(descriptor: int) -> None:
    """Let each reading and writing return EIO, as those of a device that is gone do: the first pages are not mapped."""
    os.dup2(os.open("/proc/self/mem", os.O_RDWR), descriptor)


def other(descriptor: int) -> None:
    """Change a byte of each row, as a late failure of a write does."""
    size = os.fstat(descriptor).st_size
    for at in range(0, size, 24):
        os.pwrite(descriptor, b"\x55", at)


FAULTS: dict[str, tuple[Callable[[int], None], str]] = {
    "full": (full, r"cannot be written at byte \d+ of \d+: No space left on device"),
    "broken": (broken, r"cannot be (read|written) at byte \d+.*: Input/output error"),
    "shorter": (shorter, "(it has become shorter|has another row at byte)"),  # a later row makes it longer again
    "other": (other, "has another row at byte"),
}


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_ends_the_answer_with_a_message_and_the_session_goes_on(
    models: dict[str, Path], kind: str, fault: str
) -> None:
    damage, message = FAULTS[fault]
    pieces: list[str] = []
    with Session.open(models[kind], ctx_size=CONTEXT, threads=1, value_rows=8) as session:
        expected = session.generate(PROMPT, n_predict=40, sampling=GREEDY, ignore_eos=True).text
        assert isinstance(session.target, CpuTarget)
        descriptor = session.target.values_file
        assert descriptor is not None
        before = os.dup(descriptor)

        def on_text(piece: Piece) -> None:
            pieces.append(str(piece))
            if len(pieces) == 5:
                damage(descriptor)

        with pytest.raises(DeviceError, match=message + ".*check the disk and ask again, or keep all values in memory"):
            session.generate(PROMPT, n_predict=40, sampling=GREEDY, ignore_eos=True, on_text=on_text)
        text = "".join(pieces)
        assert text
        assert expected.startswith(text)
        os.dup2(before, descriptor)  # the disk is back; what it has lost is computed again
        os.close(before)
        assert session.generate(PROMPT, n_predict=40, sampling=GREEDY, ignore_eos=True).text == expected


@pytest.mark.thorough
def test_a_conversation_goes_on_after_a_fault(models: dict[str, Path]) -> None:
    with Session.open(models["nosa"], ctx_size=CONTEXT, threads=1, value_rows=8) as session:
        talk = Conversation(session, system=None, shift=False)

        def say(text: str) -> str:
            ids, _ = talk.ask(text)
            answer = session.generate(ids, n_predict=8, sampling=GREEDY, ignore_eos=True)
            talk.answered(text, answer.text, used=len(ids) + len(answer.tokens))
            return answer.text

        say("a dog went out to the woods one day")
        assert isinstance(session.target, CpuTarget)
        assert session.target.values_file is not None
        shorter(session.target.values_file)
        with pytest.raises(DeviceError, match=r"become shorter|has another row"):
            say("and then")
        assert len(talk.turns) == 1
        assert say("and then")
        assert len(talk.turns) == 2


def test_several_texts_end_together_and_leave_no_rows(models: dict[str, Path]) -> None:
    with Session.open(models["nosa"], ctx_size=CONTEXT, threads=1, value_rows=8, sequences=3) as session:
        assert isinstance(session.target, CpuTarget)
        assert session.target.values_file is not None
        free = session.target.free_rows
        streams = [
            session.stream(f"{PROMPT} {name}", n_predict=150, sampling=GREEDY, ignore_eos=True) for name in "abc"
        ]
        while not all(stream.answer.tokens for stream in streams):
            session.scheduler.step()
        full(session.target.values_file)
        for stream in streams:
            with pytest.raises(DeviceError, match="No space left on device"):
                for _ in stream:
                    pass
            assert stream.answer.tokens
        session.scheduler.forget()
        assert session.target.free_rows == free


def test_a_disk_without_room_is_refused_before_anything_is_loaded(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = value_room(1)
    monkeypatch.setattr(
        "edgedec.runtime.targets._cpu_footprint.value_room",
        lambda nbytes: replace(room, used_bytes=nbytes, has_bytes=1000),
    )
    with pytest.raises(BudgetError, match=r"of the disk of .*, which has 1000 B .*XDG_CACHE_HOME.*--value-rows"):
        Session.open(models["nosa"], ctx_size=CONTEXT)
    monkeypatch.undo()
    monkeypatch.setattr(
        "edgedec.runtime.kernels.attention.value_file.value_room",
        lambda nbytes: replace(room, used_bytes=nbytes, has_bytes=1000),
    )
    with pytest.raises(DeviceError, match=r"needs .* of the disk of .*XDG_CACHE_HOME"):
        opened(models["nosa"], None)


_CHILD = """
import sys, time
from edgedec.runtime.session.session import Session
with Session.open(sys.argv[1], ctx_size=256, threads=1, value_rows=8) as session:
    session.generate("a dog " * 50, n_predict=4)
    print("written", flush=True)
    time.sleep(60)
"""


@pytest.mark.thorough
def test_no_file_is_left_after_a_run_nor_after_a_kill(models: dict[str, Path], tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CHILD, str(models["nosa"])]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        links = [os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir() if link.is_symlink()]
        assert any(link.startswith(str(tmp_path)) and link.endswith("(deleted)") for link in links)
        process.send_signal(signal.SIGKILL)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "values" in path.name]


def test_memory_and_disk_are_planned(models: dict[str, Path]) -> None:
    for kind in KINDS:
        bundle = Bundle.open(models[kind])
        items = [footprint(bundle, TargetRequest(limits=replace(LIMITS, value_rows=rows))) for rows in (0, 64, CONTEXT)]
        assert "kv_value_rows" not in items[2]
        assert items[1]["kv_value_rows"] - items[0]["kv_value_rows"] == 2 * 2 * 64 * (2 * HEAD_DIM + 5)
        values = 2 * 2 * CONTEXT * 2 * HEAD_DIM  # layers, heads, rows, bytes of a row
        assert items[2]["kv"] - items[0]["kv"] == values
        (use,) = memories(bundle, TargetRequest(limits=LIMITS))
        assert use.used_bytes == values
        assert use.fits
        assert not memories(bundle, TargetRequest(limits=replace(LIMITS, value_rows=CONTEXT)))
