"""Test the loop's library: its loading, the refusal of bad arguments, sanitizers, and another processor."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from ctypes import CDLL, CFUNCTYPE, addressof, c_int32, c_void_p, cast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.errors import DeviceError, EdgedecError, UsageError
from edgedec.plugins import load
from edgedec.runtime import loop
from edgedec.runtime.kernels.recipe import KernelBuildError, build_loop, find_compiler
from edgedec.runtime.loop.drafts import NO_DRAFT, CompiledDraft
from edgedec.runtime.loop.inputs import SUBMIT, WAIT, TargetArguments
from edgedec.runtime.loop.model import ModelArguments
from edgedec.runtime.loop.rounds import MOST_ROUNDS, RoundsArguments, Stop, TextArguments
from edgedec.runtime.loop.sampling import CompiledSampling
from edgedec.runtime.loop.trees import CHAIN, DELAYED, HARDWARE, CompiledGrowth, TreeMemory
from edgedec.runtime.protocols import I32, Limits, Outcome, TargetInfo, TokenTree
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from tests.conformance.support.library import grown_tree

LIBRARY = loop.load()
needs_library = pytest.mark.skipif(LIBRARY is None, reason="the loop's library was not built (no C++ compiler)")
INFO = TargetInfo(vocab=30, tokenizer_hash="0" * 64, positions=64, taps=(), masks="any", batch_invariant=True)
TEXT = np.array([1, 2, 3, 1, 2], np.int32)
COMMIT = CFUNCTYPE(c_int32)  # a function that is called with more arguments, which it ignores


def i32(*values: int) -> I32:
    return np.array(values, np.int32)


def draft() -> CompiledDraft:
    assert LIBRARY is not None
    return CompiledDraft(LIBRARY, "ngram", INFO, Limits(nodes=4, depth=3, positions=64), 64)


@needs_library
@pytest.mark.parametrize(
    ("tokens", "parents", "nodes", "message"),
    [
        ((), (), (0,), "a tree must have 1 to 64 nodes, not 0"),
        (range(65), (-1, *range(64)), (0,), "a tree must have 1 to 64 nodes, not 65"),
        ((2, 3), (-1, 1), (0,), "node 1 of a tree cannot have the parent 1"),
        ((2, 3), (-1, -1), (0,), "node 1 of a tree cannot have the parent -1"),
        ((2, 3), (0, 0), (0,), "node 0 of a tree cannot have the parent 0"),
        ((2,), (-1,), (1,), "node 1 is not in the tree"),
        ((2,), (-1,), (-1,), "node -1 is not in the tree"),
    ],
)
def test_a_tree_that_is_none_is_refused(
    tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int], message: str
) -> None:
    tree = TokenTree(tokens=i32(*tokens), parents=i32(*parents), draft={})
    with pytest.raises(EdgedecError, match=f"^compiled loop: {message}$"):
        draft().expand(TEXT, tree, i32(*nodes))


@needs_library
def test_a_text_without_tokens_is_refused() -> None:
    with pytest.raises(EdgedecError, match="a text must have at least one token"):
        draft().expand(i32(), TokenTree(tokens=i32(2), parents=i32(-1), draft={}), i32(0))


@needs_library
def test_an_outcome_without_a_root_is_refused() -> None:
    tree = TokenTree(tokens=i32(2), parents=i32(-1), draft={})
    with pytest.raises(EdgedecError, match="an outcome must have an accepted root"):
        draft().observe(tree, Outcome(path=i32(), next_token=1))


@needs_library
@pytest.mark.parametrize(
    ("policy", "nodes", "sizes", "places", "message"),
    [
        (5, 4, (), (), "there is no such tree policy"),
        (-1, 4, (), (), "there is no such tree policy"),
        (0, 65, (), (), "a tree must have 1 to 64 nodes"),
        (1, 4, (2, 2), (0, 0, 0, 0), "the levels have too many nodes"),
        (1, 4, (0,), (), "the levels have too many nodes"),
        (1, 4, (1, 1), (0, 1), "a place of a level has no parent in the level above"),
    ],
)
def test_a_growth_that_has_no_tree_is_refused(
    policy: int, nodes: int, sizes: Sequence[int], places: Sequence[int], message: str
) -> None:
    assert LIBRARY is not None
    one = draft()
    arrays = (i32(*sizes), i32(*places), np.empty(80, np.int32), np.empty(80, np.int32))
    level_sizes, where, tokens, parents = (array.ctypes.data for array in arrays)
    with pytest.raises(EdgedecError, match=message):
        LIBRARY.call(
            "edgedec_loop_grow",
            *(one.compiled.address, TEXT.ctypes.data, len(TEXT), policy, nodes, 3),
            *(level_sizes, len(sizes), where, 0, None, 0, None, 0, 0, None, None, tokens, parents),
        )


@needs_library
@pytest.mark.parametrize(
    ("policy", "rows", "first", "cost", "message"),
    [
        (DELAYED, 0, 0.5, 1.0, "a level of the tree has no measured acceptance"),
        (DELAYED, 2, 0.5, 1.0, "a level of the tree has no measured acceptance"),
        (HARDWARE, 2, 0.5, 1.0, "a level of the tree has no measured acceptance"),
        (DELAYED, 3, 1.01, 1.0, "a measured acceptance must be from 0 to 1"),
        (DELAYED, 3, -0.01, 1.0, "a measured acceptance must be from 0 to 1"),
        (HARDWARE, 3, math.nan, 1.0, "a measured acceptance must be from 0 to 1"),
        (HARDWARE, 3, 0.5, 1.0, "the policy hardware must have a memory"),
        (HARDWARE, 3, 0.5, -1.0, "the seconds of a pass must be 0 or more"),
        (HARDWARE, 3, 0.5, math.nan, "the seconds of a pass must be 0 or more"),
    ],
)
def test_measurements_that_are_none_are_refused(
    policy: int, rows: int, first: float, cost: float, message: str
) -> None:
    assert LIBRARY is not None
    one, memory = draft(), None if "memory" in message else TreeMemory(LIBRARY, None)
    accept, costs = np.full((rows, 2), first, np.float32), np.array([0, 1, 1, 1, cost])
    tokens, parents = np.empty(4, np.int32), np.empty(4, np.int32)
    with pytest.raises(EdgedecError, match=f"^compiled loop: {message}$"):
        LIBRARY.call(
            "edgedec_loop_grow",
            *(one.compiled.address, TEXT.ctypes.data, len(TEXT), policy, 4, 3, None, 0, None, 0, None, 0),
            *(accept.ctypes.data if rows else None, rows, 2, memory and memory.address),
            *(costs.ctypes.data, tokens.ctypes.data, parents.ctypes.data),
        )


@needs_library
def test_a_memory_is_closed_with_its_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy opens its memory once, when its first tree grows, and another policy has one of its own."""
    assert LIBRARY is not None
    rules = [load("edgedec.runtime.trees", name).create().compiled for name in ("hardware", "delayed")]
    closed, usual, limits = list[int](), LIBRARY.function, Limits(nodes=4, depth=3, positions=64)
    monkeypatch.setattr(
        LIBRARY, "function", lambda name: closed.append if name == "edgedec_loop_memory_close" else usual(name)
    )
    memories = [
        [rule(NO_DRAFT, limits, np.ones((3, rank), np.float32)).measured.memory.address for rank in (1, 2)]
        for rule in rules
    ]
    assert len({address for one in memories for address in one}) == 2
    assert all(one == other for one, other in memories)
    rules.pop()
    assert closed == [memories[1][0]]
    rules.clear()
    assert closed == [memories[1][0], memories[0][0]]
    for address in closed:
        usual("edgedec_loop_memory_close")(address)


def test_a_policy_without_the_library_grows_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "load", lambda: None)
    rule = load("edgedec.runtime.trees", "hardware").create().compiled
    assert rule(NO_DRAFT, Limits(nodes=4, depth=3, positions=64), np.ones((3, 1), np.float32)) is None


@pytest.mark.parametrize("name", ["delayed", "hardware"])
def test_drawn_children_stay_in_python(name: str) -> None:
    assert load("edgedec.runtime.trees", name).create(np.random.default_rng(0)).compiled is None


class TinyCall:
    """A round of a target with three tokens.

    Members:
        address: address of the arguments.
        target, text, call: the arguments.
        arrays: their arrays by name.
    """

    def __init__(self, run: object) -> None:
        sampling = CompiledSampling(Sampler(SamplingConfig(temperature=0), 3), PositionRandom(seed=0))
        file = Path(__file__).open("rb")  # noqa: SIM115  # open as long as the arguments
        inputs: dict[str, NDArray[Any]] = {
            "embed": np.zeros(2, np.float32),
            "row_positions": np.zeros(1, np.int64),
            "result_rows": np.zeros(1, np.int64),
            "visible": np.zeros(1, np.uint64),
            "sequences": np.zeros(2, np.int64),
            "table": i32(0),
            "logits": np.array([0, 2, 1], np.float32),
            "scales": np.ones(3, np.float32),
            "slots": np.zeros(1, np.int64),
            "states": np.zeros(8, np.float32),
            "state_numbers": np.zeros(8, np.int64),
        }
        results: dict[str, NDArray[Any]] = {"text": np.ones(40, np.int32), "blocks": np.arange(3, dtype=np.int32)}
        for name in ("tree_sizes", "path_sizes", "tokens", "parents", "path"):
            results[name] = np.zeros(MOST_ROUNDS, np.int32)
        results |= {f"{name}_seconds": np.zeros(MOST_ROUNDS) for name in ("draft", "verify", "commit")}
        seconds = np.zeros((2, MOST_ROUNDS))
        self.target = TargetArguments(width=2, vocab=3, rows=1, file=file.fileno(), block_rows=16, kinds=1, submit=run)
        commit = COMMIT(lambda *arguments: 0)
        self.target.commit = cast(commit, c_void_p)
        self.target.slot_floats, self.target.slot_rows, self.target.slot_count = 4, 1, 2
        self.text = TextArguments(length=1, positions=39, held=3, nodes=1, result_nodes=1, most_tokens=1)
        for arguments, arrays in ((self.target, inputs), (self.text, results)):
            for name, array in arrays.items():
                setattr(arguments, name, array.ctypes.data)
        self.text.sampling = addressof(sampling)
        pointers = (c_void_p * 1)(addressof(self.text))
        self.call = RoundsArguments(
            target=addressof(self.target),
            texts=addressof(pointers),
            count=1,
            most_rounds=1,
            pass_seconds=seconds[0].ctypes.data,
            pass_began=seconds[1].ctypes.data,
        )
        self.address = addressof(self.call)
        self.arrays = inputs | results
        self._alive = (sampling, file, seconds, pointers, run, commit)


@needs_library
@pytest.mark.parametrize("coupling", [-1, 1, 3])
def test_a_coupling_that_is_none_is_refused(coupling: int) -> None:
    """The second one lacks sampling options."""
    assert LIBRARY is not None
    growth = CompiledGrowth(CHAIN, coupling=coupling)
    with pytest.raises(EdgedecError, match="there is no such coupling"):
        grown_tree(LIBRARY, draft().compiled, growth, TEXT, Limits(nodes=4, depth=3, positions=64))


@needs_library
@pytest.mark.parametrize("change", [{"ids": 0}, {"ids": 4}, {"rows": 0}, {"rows": 2}, {"end": -1}])
def test_a_draft_model_of_other_sizes_is_refused(change: dict[str, int]) -> None:
    """The target has 3 ids, and passes of 1 row."""
    assert LIBRARY is not None
    tiny = TinyCall(SUBMIT(lambda session, rows, results: 0))
    tiny.target.commit = None
    arguments = ModelArguments(target=addressof(tiny.target), **{"end": 8, "ids": 3, "rows": 1, **change})
    assert LIBRARY.function("edgedec_loop_model_open")(addressof(arguments), 3, 2) is None
    with pytest.raises(EdgedecError, match="a draft model cannot have these sizes"):
        LIBRARY.check(-1)


@needs_library
def test_a_draft_model_with_recurrent_states_is_refused() -> None:
    assert LIBRARY is not None
    tiny = TinyCall(SUBMIT(lambda session, rows, results: 0))
    arguments = ModelArguments(target=addressof(tiny.target), end=8, ids=3, rows=1)
    assert LIBRARY.function("edgedec_loop_model_open")(addressof(arguments), 3, 2) is None
    with pytest.raises(EdgedecError, match="a draft model must have no recurrent states"):
        LIBRARY.check(-1)


@needs_library
def test_the_loop_waits_for_a_pass_that_runs_elsewhere() -> None:
    """The pass runs in a thread that begins after ``submit``, and its logits are there once ``wait`` has returned."""
    assert LIBRARY is not None
    threads: list[threading.Thread] = []
    submitted = threading.Event()

    def work() -> None:
        submitted.wait()
        tiny.arrays["logits"][...] = [0, 0, 1]

    def submit(session: int, rows: int, results: int) -> int:
        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return 0

    def wait(session: int) -> int:
        submitted.set()
        threads[-1].join()
        return 0

    tiny = TinyCall(SUBMIT(submit))
    tiny.arrays["logits"][...] = np.nan
    tiny.target.wait = waiting = WAIT(wait)
    LIBRARY.call("edgedec_loop_rounds", tiny.address)
    assert (tiny.text.rounds, tiny.arrays["text"][1]) == (1, 2)
    tiny.target.wait = failing = WAIT(lambda session: -1)
    LIBRARY.call("edgedec_loop_rounds", tiny.address)
    assert (tiny.text.rounds, tiny.text.stop) == (0, Stop.FAILED)
    del waiting, failing


@needs_library
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("length", 0, "a text must have at least one token"),
        ("length", 41, "the text is longer than its positions"),
        ("nodes", 2, "the results have no room for the nodes of a tree"),
        ("nodes", 0, "a tree must have 1 to 64 nodes"),
        ("stored", 5, "the embedding has no such type"),
        ("stored", 4, "the planes of the embedding are out of range"),
        ("scales", None, "the embedding has no such type"),
        ("width", 0, "the sizes of the target are out of range"),
        ("vocab", 1, "the last token of the text is not in the vocabulary"),
        ("rows", 0, "the sizes of the target are out of range"),
        ("kinds", 0, "the tables of blocks are out of range"),
        ("block_stride", -1, "the tables of blocks are out of range"),
        ("count", 0, "a call must have at least one text"),
        ("most_rounds", 33, "a call must have at least one text, and at most 32 rounds"),
        ("held", -1, "the number of blocks is out of range"),
        ("slot", -1, "the text has no slot for its recurrent states"),
        ("slot", 2, "the text has no slot for its recurrent states"),
        ("slot_rows", 0, "the slots of the recurrent states are out of range"),
        ("slot_count", 0, "the slots of the recurrent states are out of range"),
        ("states", None, "the slots of the recurrent states are out of range"),
        ("slots", None, "the slots of the recurrent states are out of range"),
        ("offset", 1 << 40, "a row of the embedding cannot be read from the bundle"),
    ],
)
def test_arguments_of_rounds_that_do_not_fit_are_refused(name: str, value: int | None, message: str) -> None:
    assert LIBRARY is not None
    tiny = TinyCall(SUBMIT(lambda session, rows, results: 0))
    (owner,) = (arguments for arguments in (tiny.target, tiny.text, tiny.call) if hasattr(arguments, name))
    setattr(owner, name, value)
    with pytest.raises(EdgedecError, match=message):
        LIBRARY.call("edgedec_loop_rounds", tiny.address)


@needs_library
@pytest.mark.thorough
def test_other_threads_of_the_interpreter_run_while_a_pass_runs() -> None:
    """The pass is the C library's ``sleep`` of one second, which returns 0."""
    assert LIBRARY is not None
    tiny = TinyCall(cast(CDLL(None).sleep, SUBMIT))
    tiny.target.session = 1
    thread = threading.Thread(target=LIBRARY.call, args=("edgedec_loop_rounds", tiny.address))
    thread.start()
    time.sleep(0.2)  # with the lock held, this would take until the end of the pass
    assert thread.is_alive()
    thread.join()
    assert (tiny.text.rounds, tiny.text.length) == (1, 2)


@needs_library
@pytest.mark.thorough
def test_a_library_of_another_version_is_refused(tmp_path: Path) -> None:
    if (compiler := find_compiler()) is None:
        pytest.skip("needs a C++ compiler")
    source, library = tmp_path / "old.cpp", tmp_path / "old.so"
    source.write_text('extern "C" int edgedec_loop_abi() { return 0; }\n')
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    with pytest.raises(DeviceError, match=f"has interface 0, this edgedec needs {loop._ABI}"):
        loop.Loop(library)


def loaded(value: str) -> subprocess.CompletedProcess[str]:
    code = "from edgedec.runtime import loop; print(loop.load() is not None)"
    environment = {**os.environ, "EDGEDEC_LOOP": value}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.thorough
def test_the_environment_chooses_the_loop() -> None:
    assert loaded("python").stdout == "False\n"
    if LIBRARY is not None:
        assert loaded("compiled").stdout == "True\n"
    process = loaded("pyhton")
    assert process.returncode == 1
    assert "UsageError: EDGEDEC_LOOP must be one of compiled, python, not 'pyhton'" in process.stderr


def test_an_unknown_loop_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_LOOP", "fast")
    with pytest.raises(UsageError, match="EDGEDEC_LOOP must be one of compiled, python, not 'fast'"):
        loop.load.__wrapped__()


def driven(
    folder: Path, name: str, compiler: Sequence[str], extra: Sequence[str] = (), prefix: Sequence[str] = ()
) -> str:
    """Compile the driver, run it, and return its output."""
    program = folder / name
    try:
        messages = build_loop(
            compiler,
            program,
            driver=Path(__file__).with_name("driver.cpp"),
            extra=extra,
            static=not any("sanitize" in option for option in extra),
        )
    except KernelBuildError as error:
        pytest.fail(str(error))
    assert messages == ""
    process = subprocess.run([*prefix, str(program), "1", "2", "3"], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-D_GLIBCXX_ASSERTIONS", "-O1", "-g")


@pytest.mark.nightly
def test_random_arguments_pass_the_sanitizers_and_give_equal_results_on_another_processor(tmp_path: Path) -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    expected = driven(tmp_path, "native", compiler)
    assert expected.count("\n") == 3 * 10 + 1
    assert driven(tmp_path, "sanitized", compiler, extra=SANITIZERS) == expected
    cross, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if not cross or not emulator:
        pytest.skip("needs g++-aarch64-linux-gnu and qemu-user")
    assert driven(tmp_path, "aarch64", [cross], prefix=[emulator, "-cpu", "max"]) == expected
