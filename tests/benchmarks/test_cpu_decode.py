"""Test the parts of benchmarks/cpu/decode.py that need no idle machine: models, figures, what is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import DeviceError, ToolError, UsageError
from edgedec.families import build_graph
from edgedec.quantize.readers import open_checkpoint
from edgedec.quantize.readers.gguf.header import read_header
from edgedec.runtime.kernels.recipe import find_compiler

ROOT = Path(__file__).parents[2]
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return importlib.import_module("benchmarks.cpu.decode")


@pytest.fixture(scope="module")
def rounds(benchmark: Any) -> Any:
    return sys.modules["benchmarks.cpu.rounds"]


@pytest.fixture(scope="module")
def peers(benchmark: Any) -> Any:
    return sys.modules["benchmarks.peers.llama_cpp"]


@pytest.fixture(scope="module")
def shapes(benchmark: Any) -> Any:
    return sys.modules["benchmarks.support.shapes"]


@pytest.fixture(scope="module")
def small(shapes: Any) -> dict[str, Any]:
    """Return the benchmark's model with few and narrow layers."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 50}
    return {**shapes.BITNET_073B, **sizes, "num_attention_heads": 4, "num_key_value_heads": 4}


@pytest.fixture(scope="module")
def bundle(shapes: Any, small: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("models") / "small.edgedec"
    shapes.write_bundle(path, small)
    return Bundle.open(path)


class Gguf:
    """Read a GGUF file, independently, from the format's description."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 4
        assert data[:4] == b"GGUF"
        assert self.take("I") == 3
        tensors, entries = self.take("Q"), self.take("Q")
        self.metadata = {self.text(): self.value() for _ in range(entries)}
        infos = [self.info() for _ in range(tensors)]
        start = -(-self.at // 32) * 32
        self.tensors = {name: self.array(start + offset, shape, kind) for name, shape, kind, offset in infos}

    def take(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.at)
        self.at += struct.calcsize(f"<{code}")
        return value

    def text(self) -> str:
        length = self.take("Q")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def value(self) -> Any:
        kind = self.take("I")
        return self.text() if kind == 8 else self.take({4: "I", 6: "f"}[kind])

    def info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.text()
        shape = tuple(self.take("Q") for _ in range(self.take("I")))
        return name, shape[::-1], self.take("I"), self.take("Q")

    def array(self, at: int, shape: tuple[int, ...], kind: int) -> NDArray[np.float32]:
        assert at % 32 == 0
        dtype = {0: np.float32, 1: np.float16}[kind]
        return np.frombuffer(self.data, dtype, int(np.prod(shape)), at).reshape(shape).astype(np.float32)


def test_both_models_hold_the_same_weights(
    shapes: Any, small: Mapping[str, Any], bundle: Bundle, tmp_path: Path
) -> None:
    shapes.write_gguf(tmp_path / "small.gguf", small)
    gguf = Gguf((tmp_path / "small.gguf").read_bytes())
    graph = build_graph(small)
    bundle.check(graph)
    assert len(gguf.tensors) == len(graph.weights) - 1  # the head is the embedding
    for name in graph.weights:
        ours = bundle.weight(name).dense()
        if name == "lm_head.weight":
            theirs = gguf.tensors["token_embd.weight"]
            assert np.abs(ours - theirs).max() <= np.abs(theirs).max() / 254 + 1e-6
        else:
            np.testing.assert_array_equal(ours, gguf.tensors[shapes.gguf_name(name)], err_msg=name)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["Q2_0", "TQ2_0"])
def test_a_model_that_is_ternary_everywhere_has_the_same_weights_in_each_type(
    benchmark: Any, tmp_path: Path, kind: str
) -> None:
    maker = sys.modules["benchmarks.cpu.bonsai_model"]
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 2048}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    maker.write_bundle(tmp_path / "b", config={**maker.CONFIG, **sizes, **heads})
    maker.write_gguf(tmp_path / "m.gguf", tmp_path / "b", kind)
    bundle, checkpoint = Bundle.open(tmp_path / "b"), open_checkpoint(tmp_path / "m.gguf")
    graph = build_graph(bundle.config)
    bundle.check(graph)
    matrices = [name for name, spec in graph.weights.items() if len(spec.shape) == 2]
    assert {bundle.tensors[name].scheme.kind for name in matrices} == {"ternary"}
    assert {tensor.kind.name for tensor in read_header(tmp_path / "m.gguf").tensors.values()} == {kind, "F32"}
    for name in graph.weights:
        np.testing.assert_array_equal(bundle.weight(name).dense(), checkpoint.load(name), err_msg=name)


def test_the_gguf_describes_the_model(shapes: Any, small: Mapping[str, Any], tmp_path: Path) -> None:
    shapes.write_gguf(tmp_path / "small.gguf", small)
    metadata = Gguf((tmp_path / "small.gguf").read_bytes()).metadata
    assert metadata["general.architecture"] == "bitnet"
    assert metadata["bitnet.embedding_length"] == 64
    assert metadata["bitnet.feed_forward_length"] == 96
    assert metadata["bitnet.rope.dimension_count"] == 16
    assert metadata["bitnet.rope.freq_base"] == 10000.0
    assert metadata["bitnet.attention.layer_norm_rms_epsilon"] == np.float32(1e-5)
    assert metadata["bitnet.vocab_size"] == 50


def test_the_bundle_is_one_that_quantize_could_have_made(bundle: Bundle) -> None:
    kinds = {name: tensor.scheme.kind for name, tensor in bundle.tensors.items()}
    assert kinds["lm_head.weight"] == "int8"
    assert kinds["model.embed_tokens.weight"] == "float"
    assert {kind for name, kind in kinds.items() if name.endswith("_proj.weight")} == {"ternary"}


def test_a_measurement_does_not_change_the_text(rounds: Any, bundle: Bundle) -> None:
    run = rounds.OurRun(bundle, 1)
    run.passes(8, 64, every_row=True, repeats=1)
    before = run.logits.copy()
    assert before.shape == (8, 50)
    assert run.state.length == 64
    run.decode(64, 5)
    assert len(run.passes(128, 0, every_row=False, repeats=2)) == 2
    assert run.logits.shape[0] == 1
    assert run.state.length == 0
    run.passes(8, 64, every_row=True, repeats=3)
    np.testing.assert_allclose(run.logits, before, rtol=1e-3, atol=1e-3)


class FakeEngine:
    def __init__(self, name: str, slowness: float, log: list[str]) -> None:
        self.name, self.slowness, self.log, self.cpu = name, slowness, log, 0.0

    def passes(self, rows: int, past: int, *, every_row: bool, repeats: int) -> list[float]:
        assert every_row == (rows < 128)
        if rows > 1 or repeats > 1:
            self.log.append(f"{self.name} {rows} over {past}")
        return [100.0, *([self.slowness * (2 + rows)] * (repeats - 1))]  # the first pass is slow, like a real one

    def decode(self, past: int, tokens: int) -> float:
        self.log.append(f"{self.name} decode")
        return self.slowness * 2

    def cpu_seconds(self) -> float:
        self.cpu += 0.5
        return self.cpu


def test_rounds_take_turns_and_ratios_are_theirs_over_ours(rounds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SETTLE_S", 0)
    log: list[str] = []
    ours, theirs = FakeEngine("ours", 0.001, log), FakeEngine("theirs", 0.003, log)
    samples = rounds.sample(ours, theirs, lambda: 1e9, 2)
    assert [line for line in log if line.endswith(" 8 over 64")] == [
        "ours 8 over 64",
        "theirs 8 over 64",
        "theirs 8 over 64",
        "ours 8 over 64",
    ]
    summary = rounds.summarize(samples, 1_700_000)
    assert summary["jobs"]["decode"]["ratio"] == pytest.approx(3)
    assert summary["jobs"]["pass 8"]["ratio"] == pytest.approx(3)
    assert summary["jobs"]["pass 8"]["ours_ms"]["median"] == pytest.approx(10)  # the first, slow pass does not count
    assert summary["jobs"]["decode"]["ours_cpu_ms"]["median"] == pytest.approx(500 / 16)  # a mean over 16 tokens
    assert summary["jobs"]["pass 8"]["peer_cpu_ms"]["median"] == pytest.approx(500 / 5)  # a mean over 5 passes
    assert summary["t4_over_t1"] == pytest.approx(6 / 3)
    assert summary["stream_share"] == pytest.approx(1.7e6 / 0.002 / 1e9)
    slower = {1: summary, 2: rounds.summarize(rounds.sample(theirs, ours, lambda: 1e9, 1), 1_700_000)}
    assert rounds.headline(slower) == {
        "decode_ratio": {"1": pytest.approx(3), "2": pytest.approx(1 / 3)},
        "pass8_ratio": {"1": pytest.approx(3), "2": pytest.approx(1 / 3)},
        "stream_share": {"1": pytest.approx(0.85), "2": pytest.approx(0.85 / 3)},
        "t4_over_t1": pytest.approx(2),
        "prompt128_ratio": pytest.approx(1 / 3),
    }


def test_without_a_peer_there_are_no_ratios(rounds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SETTLE_S", 0)
    samples = rounds.sample(FakeEngine("ours", 0.001, []), None, lambda: 1e9, 1)
    summary = rounds.headline({2: rounds.summarize(samples, 1_000_000)})
    assert summary["decode_ratio"] == {"2": None}
    assert summary["prompt128_ratio"] is None
    assert summary["t4_over_t1"] == pytest.approx(2)


def test_the_report_names_what_is_missed(benchmark: Any, rounds: Any, capsys: pytest.CaptureFixture[str]) -> None:
    samples = rounds.Samples(stream=[1e9])
    for job in rounds.JOBS:
        samples.ours[job], samples.peer[job] = [0.010], [0.030] if job == "pass 2" else [0.016]
        samples.ours_cpu[job], samples.peer_cpu[job] = [0.011], [0.017]
    details = {
        "cpu": "a CPU",
        "cpus": 2,
        "others_share": 0.2,
        "rounds": 1,
        "model": "bitnet-0.73b",
        "weights": "ternary",
        "edgedec": "0",
        "code_path": "scalar",
        "kv_bits": 16,
        "weight_bytes": 9_000_000,
        "bundle_bytes": 10_000_000,
        "charged": {"available": True, "peak_bytes": 110, "planned_bytes": 100, "ratio": 1.1},
        "threads": {"2": rounds.summarize(samples, 9_000_000)},
    }
    benchmark.print_report({"details": details})
    text = capsys.readouterr().out
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert lines["decode"].split()[-3:] == ["1.60-1.60", ">=", "1.4"]
    assert lines["decode"].split()[3] == "11.00"  # CPU time
    jobs = [line for line in text.splitlines() if line.startswith(("decode", "pass", "prompt"))]
    assert jobs[-1].startswith("pass 2")  # the best one
    assert lines["prompt"].split()[-3:] == ["MISSES", ">=", "2"]
    assert "others took 20% of the CPUs: NOT QUIET" in text
    assert "share 0.900 >= 0.8" in text
    assert "ratio 1.100 MISSES <= 1\n" in text


def test_the_share_of_others_excludes_this_process_and_idle_time(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, own = [10.0], [1.0]
    tick = os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(benchmark, "STAT", tmp_path / "stat")
    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(benchmark.os, "times", lambda: (own[0], 0.0, 0.0, 0.0, 99.0))
    monkeypatch.setattr(benchmark.os, "cpu_count", lambda: 2)
    (tmp_path / "stat").write_text("cpu  100 0 0 1000 50 0 0 0 0 0\ncpu0 0 0 0 0\n")
    other_load = benchmark.Others()
    clock[0], own[0] = 12.0, 2.0
    (tmp_path / "stat").write_text(f"cpu  {100 + 2 * tick} 0 {tick} {1000 + tick} 99 0 0 0 0 0\ncpu0 0 0 0 0\n")
    assert other_load.share() == pytest.approx((3 - 1) / 2 / 2)
    (tmp_path / "stat").unlink()
    unknown = benchmark.Others()
    clock[0] = 13.0
    assert unknown.share() == 0


@pytest.mark.thorough  # compiles the stream
@needs_compiler
def test_the_stream_reads_every_word(benchmark: Any) -> None:
    stream = sys.modules["benchmarks.cpu.stream"].MemoryStream(1 << 20)
    assert stream.bytes_per_second(1) > 1e6
    assert stream.bytes_per_second(2) > 1e6
    with pytest.raises(UsageError, match="cannot be read by 3 threads"):
        stream.bytes_per_second(3)
    assert stream.best_bytes_per_second(2, 2) > 1e6
    with pytest.raises(UsageError, match="a piece of"):
        stream.best_bytes_per_second(3, 1)
    stream._words[77] += 1
    with pytest.raises(DeviceError, match="not their sum"):
        stream.bytes_per_second(1)


def run_benchmark(tmp_path: Path, *options: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **({} if path is None else {"PATH": path})}
    command = [sys.executable, "-m", "benchmarks.cpu.decode", *options]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.thorough
def test_a_missing_cmake_is_named(tmp_path: Path) -> None:
    process = run_benchmark(tmp_path, "--quick", path=str(tmp_path))
    assert process.returncode == 3
    assert "there is no cmake; install one, or measure edgedec alone with --no-peer" in process.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("options", [("--rounds", "0"), ("--threads", "0"), ("--threads", "100000")])
def test_impossible_requests_are_refused(tmp_path: Path, options: tuple[str, str]) -> None:
    process = run_benchmark(tmp_path, "--no-peer", *options)
    assert process.returncode == 2
    assert "--rounds must be at least 1" in process.stderr


class FakePip:
    """Replace ``subprocess.run`` of a pip that puts ``content`` into its folder, or fails without one."""

    def __init__(self, content: bytes | None) -> None:
        self.content = content

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:4] == ["-m", "pip", "download"]
        if self.content is None:
            return subprocess.CompletedProcess(command, 1, "", "looking\nERROR: no index\n")
        Path(command[command.index("--dest") + 1], "sources.tar.gz").write_bytes(self.content)
        return subprocess.CompletedProcess(command, 0, "", "")


def test_only_the_known_sources_are_accepted(peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.subprocess, "run", FakePip(b"something else"))
    with pytest.raises(ToolError, match="another file than the one measured"):
        peers._download(tmp_path)


def test_a_missing_index_is_reported(peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.subprocess, "run", FakePip(None))
    with pytest.raises(ToolError, match="ERROR: no index; check the network and the package index, or measure"):
        peers._download(tmp_path)


def test_only_llama_cpp_is_unpacked_from_the_sources(peers: Any, tmp_path: Path) -> None:
    for name in ("top/PKG-INFO", "top/vendor/llama.cpp/CMakeLists.txt", "top/vendor/llama.cpp/models/big.gguf"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    with tarfile.open(tmp_path / "sources.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "top", "top")
    peers._unpack(tmp_path / "sources.tar.gz", tmp_path / "source")
    assert [path.name for path in (tmp_path / "source").rglob("*") if path.is_file()] == ["CMakeLists.txt"]


DRIVER = """import sys
print("123\\tBitNet\\t1.0\\tAVX2", flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "decode":
        print("0.5", flush=True)
    elif words[:4] == ["pass", "8", "64", "1"]:
        print("0.25 0.125", flush=True)
    elif words[0] == "cpu":
        print("1.5", flush=True)
    elif words[0] == "pass":
        print("error llama_decode gave 1", flush=True)
    else:
        sys.exit(1)
"""


def test_the_output_of_the_driver_is_read(peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "driver"
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    # A shell script, because a script's first line cannot name an interpreter whose path holds a space.
    driver.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    driver.chmod(driver.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(peers, "compile_cached", lambda source, options: driver)
    llama = peers.LlamaCpp(source=tmp_path, binaries=tmp_path)
    with peers.LlamaRun(llama, tmp_path / "model", threads=1, positions=256) as run:
        assert (run.model_bytes, run.model, run.release, run.system) == (123, "BitNet", "1.0", "AVX2")
        assert run.decode(64, 10) == 0.05
        assert run.cpu_seconds() == 1.5
        assert run.passes(8, 64, every_row=True, repeats=2) == [0.25, 0.125]
        with pytest.raises(DeviceError, match="llama_decode gave 1"):
            run.passes(9, 64, every_row=True, repeats=1)
        with pytest.raises(DeviceError, match="its process has ended"):
            run.last_logits(50)


def test_a_source_tree_is_measured_with_its_own_interface(peers: Any, tmp_path: Path) -> None:
    source, build = tmp_path / "relative.cpp", tmp_path / "build"
    for folder in (source / "include", build / "bin", build / "src"):
        folder.mkdir(parents=True)
    with pytest.raises(ToolError, match=r"has no CMakeLists\.txt and include/llama\.h"):
        peers.prepare_tree(source, build, "abc")
    (source / "CMakeLists.txt").touch()
    (source / "include" / "llama.h").write_text("LLAMA_API bool llama_kv_self_seq_rm(struct llama_context * ctx);")
    with pytest.raises(ToolError, match="name its commit with --peer-commit"):
        peers.prepare_tree(source, build, None)
    for name in ("bin/llama-quantize", "src/libllama.so", "src/libggml.so"):
        (build / name).touch()
    tree = peers.prepare_tree(source, build, "0123456789abcdef")
    assert tree.version == "relative.cpp, commit 0123456789abcdef"
    assert tree.label == "relative.cpp-0123456789."
    options = tree.driver_options()
    assert [option for option in options if option.startswith("-DPEER")] == ["-DPEER_HAS_llama_kv_self_seq_rm"]
    assert [option for option in options if option.startswith("-l")] == ["-lllama", "-lggml"]
    assert f"-L{build / 'src'}" in options
    (build / "src" / "libllama.so").unlink()
    (build / "src" / "libggml.so").unlink()
    with pytest.raises(ToolError, match="build the tree with shared libraries"):
        tree.driver_options()


@pytest.mark.thorough  # starts the compiler
@needs_compiler
def test_compiler_errors_are_reported(benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_cached = sys.modules["benchmarks.support.compile"].compile_cached
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "wrong.cpp").write_text("int main( {")
    with pytest.raises(ToolError, match=r"cannot compile benchmarks/wrong.cpp:(?s:.)*error"):
        compile_cached(tmp_path / "wrong.cpp", ())
    (tmp_path / "right.cpp").write_text("int main() { return 7; }")
    program = compile_cached(tmp_path / "right.cpp", ())
    assert subprocess.run([program], check=False).returncode == 7
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert shutil.which("g++") is None
    with pytest.raises(ToolError, match="there is no C\\+\\+ compiler"):
        compile_cached(tmp_path / "right.cpp", ())
