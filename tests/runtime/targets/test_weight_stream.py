"""Compare passes that read weights from the disk with those of a resident model, to the bit, and break the disk."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import DeviceError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.kernels.weights import weight_parts
from edgedec.runtime.kernels.weights.layout_cache import FILE, open_layout
from edgedec.runtime.model_graph import bundle_graph
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.target_request import TargetRequest
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._cpu import CpuTarget
from edgedec.runtime.targets._cpu_weights import fixed_sizes, least_weights
from edgedec.runtime.targets.onnx import footprint
from tests.runtime.kernels.test_weight_parts import METHODS
from tests.runtime.targets.test_fused import CONFIG, LIMITS, TAPS, passes

pytestmark = [
    pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)"),
    pytest.mark.thorough,
]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small matrices be streamed, in several parts each."""
    monkeypatch.setattr(weight_parts, "_LEAST_BYTES", 1)
    monkeypatch.setattr(weight_parts, "_LEAST_PART_BYTES", 6_000)


def make_bundle(path: Path, method: str) -> Bundle:
    write_random_bundle(path, CONFIG, **METHODS[method])
    return Bundle.open(path)


def open_streaming(bundle: Bundle, weight_bytes: int, *, threads: int = 1) -> CpuTarget:
    limits = replace(LIMITS, weight_bytes=weight_bytes)
    target = open_target(bundle, limits=limits, threads=threads, taps=TAPS)
    assert isinstance(target, CpuTarget)
    assert target.stream is not None
    return target


def span(bundle: Bundle) -> tuple[int, int]:
    """Return the least memory for the weights, and more than that of all of them beside the largest window."""
    least = least_weights(bundle)
    assert least is not None
    return least, 2 * fixed_sizes(bundle, bundle_graph(bundle)).weights


def same(parts: list[NDArray[np.float32]], expected: list[NDArray[np.float32]]) -> bool:
    return all(part.tobytes() == right.tobytes() for part, right in zip(parts, expected, strict=True))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_streamed_passes_have_the_bits_of_resident_ones(
    method: str, fused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fused:
        monkeypatch.setenv("EDGEDEC_FUSED", "0")
    bundle = make_bundle(tmp_path / "bundle", method)
    expected = passes(open_target(bundle, limits=LIMITS, threads=1, taps=TAPS))
    least, most = span(bundle)
    for share in (0.0, 0.2, 1.0):
        target = open_streaming(bundle, int(least + share * (most - least)), threads=2)
        assert target.stream is not None
        for _ in range(2):
            assert same(passes(target), expected)
        counts, split = target.stream.counts, target.stream.split
        if share == 1.0:
            assert all(split.pinned)
            assert counts.read_bytes == counts.used_bytes == 0
            continue
        assert not all(split.pinned)
        assert any(split.pinned) == (share > 0)
        assert counts.read_bytes >= counts.used_bytes > split.streamed_bytes
        # A pass without logits ends before the head, so the next one begins with another part than was expected.
        assert counts.restarts <= 2 * 2


@pytest.mark.parametrize("method", METHODS)
def test_passes_use_the_parts_in_the_order_in_which_they_are_read(method: str, tmp_path: Path) -> None:
    """In another order texts would be right, too, but parts would be read in vain."""
    bundle = make_bundle(tmp_path / "bundle", method)
    target = open_streaming(bundle, span(bundle)[0])
    assert target.stream is not None
    state = target.open(LIMITS)
    for count in (1, 3, 40):
        target.submit([(state, rows(count))])
    counts = target.stream.counts
    assert counts.restarts == 0
    assert counts.used_bytes == 3 * target.stream.split.streamed_bytes


def rows(count: int) -> Pass:
    """Return a pass of the first rows of a text."""
    ids = np.arange(count, dtype=np.int32)
    return Pass(ids=ids, positions=ids)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1), window=st.integers(1, 40), most_slots=st.integers(2, 9))
def test_any_split_has_the_bits_of_the_resident_model(
    share: float, window: int, most_slots: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "any-split"
    if not folder.exists():
        write_random_bundle(folder, CONFIG, **METHODS["planes"])
    bundle = Bundle.open(folder)
    expected = passes(open_target(bundle, limits=LIMITS, threads=1, taps=TAPS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_parts, "_WINDOW_SHARE", window)
        patch.setattr(weight_parts, "MOST_SLOTS", most_slots)
        least, most = span(bundle)
        assert same(passes(open_streaming(bundle, int(least + share * (most - least)))), expected)


def test_the_memory_is_planned(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle", "planes")
    least, most = span(bundle)
    for weight_bytes in range(least, most, (most - least) // 20):
        items = footprint(bundle, TargetRequest(limits=replace(LIMITS, weight_bytes=weight_bytes)))
        target = open_streaming(bundle, weight_bytes)
        assert target.stream is not None
        split = target.stream.split
        assert items["weights_pinned"] + items["weights_window"] <= weight_bytes
        assert items["weights_window"] >= split.window_bytes
        assert items["weights_pinned"] >= split.pinned_bytes
        assert "weights" not in items


def test_the_draft_model_stays_in_memory(tmp_path: Path) -> None:
    from edgedec.runtime.drafters.model import create

    draft = create(make_bundle(tmp_path / "draft", "int8"))
    assert "draft_weights" in draft.footprint(replace(LIMITS, weight_bytes=1 << 20))


# --- a disk that fails ------------------------------------------------------------------------------------------------


def damage(path: Path, how: str) -> None:
    """Change the content of a file in its place."""
    if how == "shorter":
        os.truncate(path, path.stat().st_size // 2)
    else:
        with path.open("r+b") as file:
            file.seek(5000)
            file.write(b"\0\1\2\3")
        os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(("how", "message"), [("shorter", "changed while the model ran"), ("other", "was changed")])
def test_a_file_that_changes_ends_the_pass_with_a_message(how: str, message: str, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle", "ternary")
    target = open_streaming(bundle, span(bundle)[0])
    state = target.open(LIMITS)
    target.submit([(state, rows(2))])
    state.commit(np.arange(2, dtype=np.int32))
    damage(bundle.path / FILE, how)
    next_row = replace(rows(1), positions=np.array([2], np.int32))
    with contextlib.suppress(DeviceError):
        target.submit([(state, next_row)])  # the window may still have parts of the file as it was
    for _ in range(2):  # it stays an error, and no pass waits for ever
        with pytest.raises(DeviceError, match=message):
            target.submit([(state, next_row)])
        assert state.length == 2


def test_a_file_that_another_one_took_the_place_of_is_read_on(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle", "ternary")
    expected = passes(open_target(bundle, limits=LIMITS, threads=1, taps=TAPS))
    target = open_streaming(bundle, span(bundle)[0])
    other = tmp_path / "other"
    other.write_bytes(b"\0" * (bundle.path / FILE).stat().st_size)
    other.rename(bundle.path / FILE)
    assert same(passes(target), expected)


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = make_bundle(tmp_path / "bundle", "ternary")
    least = span(bundle)[0]
    monkeypatch.setattr(
        "edgedec.runtime.targets._cpu_weights.open_layout",
        lambda *arguments: replace(open_layout(*arguments), path=tmp_path / "nothing"),
    )
    with pytest.raises(DeviceError, match="nothing: cannot be opened: No such file or directory"):
        open_streaming(bundle, least)


# A library whose ``pread`` fails as the environment says, from a number of direct reads on.
_FAULTS = """
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <errno.h>
    #include <fcntl.h>
    #include <stdlib.h>
    #include <string.h>
    #include <unistd.h>

    static int reads = 0;

    ssize_t pread64(int file, void *to, size_t count, off64_t at) {
        static ssize_t (*real)(int, void *, size_t, off64_t) = 0;
        if (!real) real = (ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
        const char *fault = getenv("FAULT");
        const int direct = fcntl(file, F_GETFL) & O_DIRECT;
        if (direct && !strcmp(fault, "refuse")) { errno = EINVAL; return -1; }
        if (direct && !strcmp(fault, "uneven") && count > 4096) {
            if (++reads % 4 == 0) { errno = EINTR; return -1; }
            const ssize_t got = real(file, to, count, at), most = reads % 3 ? 4096 : 5000;
            return got < most ? got : most;
        }
        if (direct && !strcmp(fault, "eio") && ++reads > atoi(getenv("FROM"))) { errno = EIO; return -1; }
        return real(file, to, count, at);
    }
    ssize_t pread(int file, void *to, size_t count, off_t at) { return pread64(file, to, count, at); }
"""
_CHILD = """
    import sys
    from pathlib import Path
    from edgedec.errors import DeviceError
    from edgedec.bundle.bundle import Bundle
    from edgedec.runtime.kernels.weights import weight_parts
    from tests.runtime.targets.test_weight_stream import open_streaming, passes, span
    weight_parts._LEAST_BYTES, weight_parts._LEAST_PART_BYTES = 1, 6_000
    bundle = Bundle.open(sys.argv[1])
    least, most = span(bundle)
    try:
        target = open_streaming(bundle, (3 * least + most) // 4, threads=2)
        print("direct" if target.stream.direct else "not direct")
        results = passes(target)
    except DeviceError as error:
        print(error)
    else:
        Path(sys.argv[2]).write_bytes(b"".join(part.tobytes() for part in results))
"""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    (folder / "faults.c").write_text(textwrap.dedent(_FAULTS))
    library = folder / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(folder / "faults.c"), "-ldl"], check=True)
    return library


def run_with(faults: Path, bundle: Bundle, **environment: str) -> tuple[str, bytes]:
    """Run ``passes`` in a process whose reads are faulty; return its output and the bytes of its results."""
    results = bundle.path.parent / "results"
    results.unlink(missing_ok=True)
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_CHILD), str(bundle.path), str(results)],
        env={**os.environ, "LD_PRELOAD": str(faults), **environment},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not process.returncode, process.stderr
    return process.stdout, results.read_bytes() if results.exists() else b""


@pytest.mark.skipif(sys.platform != "linux", reason="the faulty library is one of Linux")
def test_reads_that_are_short_refused_or_interrupted_change_nothing_and_errors_are_told(
    faults: Path, tmp_path: Path
) -> None:
    bundle = make_bundle(tmp_path / "bundle", "planes")
    expected = b"".join(part.tobytes() for part in passes(open_target(bundle, limits=LIMITS, threads=1, taps=TAPS)))
    for fault in ("uneven", "refuse"):
        output, results = run_with(faults, bundle, FAULT=fault)
        assert results == expected, (fault, output)
        assert output.splitlines()[0] == ("not direct" if fault == "refuse" else "direct")
    for first in (1, 300):  # while pinned parts are read, and during the passes
        output, results = run_with(faults, bundle, FAULT="eio", FROM=str(first))
        assert not results
        assert re.search(r"cannot be read at byte \d+: Input/output error$", output.strip())
        assert ("direct" in output) == (first > 1)


def test_limits_without_memory_for_the_weights_are_those_of_a_resident_model(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle", "ternary")
    target: Any = open_target(bundle, limits=Limits(nodes=4, depth=0, positions=16), threads=1)
    assert target.stream is None
