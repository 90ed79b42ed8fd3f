"""Checks of built files: what they hold, what they need of a system, and that they write the right text.

A check gives a ``Result``: "ok", "skipped" or "FAILED", its name, and a detail.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from release_archives import library_needs, needed_glibc, unpack

from tests.support.pythons import find_python

Result = tuple[str, str, str]

MOST_BYTES = 20_000_000
LIBRARIES = ("runtime/kernels/libedgedec_kernels.so", "runtime/loop/libedgedec_loop.so")
# Shared libraries that every system of a manylinux tag has. Source: PEP 600 and auditwheel's policies.
ALLOWED = re.compile(r"(libc|libm|libpthread|libgcc_s|ld-linux-x86-64|ld-linux-aarch64)\.so\.\d")
MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of ELF
ARM_PROCESSORS = {"cortex-a53": "neon", "neoverse-n1": "neon_dotprod", "max": "neon_i8mm"}  # qemu's name -> code path
ARM_ROOT = "/usr/aarch64-linux-gnu"  # Debian's folder of the libraries for cross-compiled programs
OLD_PROCESSOR = "Nehalem"  # qemu's name of a processor without AVX, on which current NumPy runs
GENERATE = ("generate", "-m", "demo", "-p", "Once upon a time", "-n", "20", "--temp", "0", "--json")
# Program that loads libraries, whose self-tests run then, and prints the code path of the first one.
LOADER = r"""
#include <cstdio>
#include <dlfcn.h>
int main(int count, char** names) {
  void* first = nullptr;
  for (int i = 1; i < count; ++i) {
    void* library = dlopen(names[i], RTLD_NOW);
    if (!library) { std::puts(dlerror()); return 1; }
    if (!first) first = library;
  }
  using Text = const char* (*)();
  const char* path = reinterpret_cast<Text>(dlsym(first, "edgedec_path"))();
  if (!path) { std::puts(reinterpret_cast<Text>(dlsym(first, "edgedec_error"))()); return 1; }
  std::puts(path);
}
"""


def output(*command: str | Path, env: Mapping[str, str] | None = None) -> tuple[bool, str]:
    """Return whether a command succeeds, and its output, or the end of its messages."""
    words = [str(word) for word in command]
    process = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    text = process.stdout if process.returncode == 0 else (process.stdout + process.stderr).strip()[-400:]
    return process.returncode == 0, text


def judged(good: bool, name: str, detail: str) -> Result:
    return ("ok" if good else "FAILED", name, detail)


def machine_of(wheel: Path) -> str:
    """Return the machine in a wheel's name."""
    return re.sub(r".*manylinux_\d+_\d+_", "", wheel.stem)


def files(paths: Sequence[Path], root: Path, work: Path, python: Path) -> Iterator[Result]:
    """Check what lies in the files, without running it on this machine."""
    version = re.search(r'(?m)^__version__ = "(.+)"$', (root / "edgedec" / "__init__.py").read_text())
    assert version is not None
    stated = re.search(r"(?m)^version: (.+)$", (root / "CITATION.cff").read_text())
    names = [path.name for path in paths if f"edgedec_toolchain-{version[1]}" not in path.name]
    names += [] if stated and stated[1].strip('"') == version[1] else ["CITATION.cff"]
    yield judged(not names, "version", f"{version[1]} everywhere" if not names else f"{', '.join(names)} differ")
    for path in paths:
        yield judged(path.stat().st_size <= MOST_BYTES, f"size of {path.name}", f"at most {MOST_BYTES / 1e6:.0f} MB")
    for wheel in (path for path in paths if path.suffix == ".whl"):
        folder = unpack(wheel, work / "unpacked" / wheel.stem)
        yield _content(wheel, folder, work)
        good, text = output(python, "-m", "auditwheel", "show", wheel)
        tag = wheel.stem.split("-")[-1]
        text = " ".join(text.split())
        good = good and f'is consistent with the following platform tag: "{tag}"' in text
        yield judged(good, f"auditwheel on {tag}", "consistent" if good else text[-400:])
        if machine_of(wheel) == "aarch64":
            yield from _arm(folder, work)


def _content(wheel: Path, folder: Path, work: Path) -> Result:
    """Check a wheel's libraries: their machine, what they need, and that they name no folder of the build."""
    wrong = []
    for name in LIBRARIES:
        library = folder / "edgedec" / name
        if not library.is_file():
            wrong.append(f"{name} is missing")
            continue
        data = library.read_bytes()
        needs = re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-dW", library)[1])
        wrong += [f"{name} needs {need}" for need in needs if not ALLOWED.fullmatch(need)]
        if MACHINES.get(int.from_bytes(data[18:20], "little")) != machine_of(wheel):
            wrong.append(f"{name} is for another machine")
        wrong += [f"{name} names {path}" for path in (work, Path.home()) if str(path).encode() in data]
        wrong += [f"{name} needs {other}" for other in ("GLIBCXX", "CXXABI") if other in library_needs(library)]
    glibc = needed_glibc(folder)
    if "-manylinux_{}_{}_".format(*glibc) + machine_of(wheel) not in wheel.name:
        wrong.append("glibc {}.{} is needed".format(*glibc))
    detail = "; ".join(wrong) or "need glibc {}.{}, and no C++ library".format(*glibc)
    return judged(not wrong, f"libraries of {machine_of(wheel)}", detail)


def _arm(folder: Path, work: Path) -> Iterator[Result]:
    """Load a wheel's AArch64 libraries on emulated processors; loading runs the self-tests of the code paths."""
    name, compiler, emulator = "self-tests on AArch64", "aarch64-linux-gnu-g++", "qemu-aarch64"
    missing = [tool for tool in (compiler, emulator) if shutil.which(tool) is None]
    if missing:
        yield "skipped", name, f"needs {' and '.join(missing)} (Debian: g++-aarch64-linux-gnu, qemu-user)"
        return
    source, program = work / "loader.cpp", work / "loader"
    source.write_text(LOADER)
    good, text = output(compiler, "-O1", source, "-o", program)
    for processor, code_path in ARM_PROCESSORS.items() if good else ():
        libraries = [folder / "edgedec" / library for library in LIBRARIES]
        good, text = output(emulator, "-L", ARM_ROOT, "-cpu", processor, program, *libraries)
        yield judged(good and text.strip() == code_path, f"{name}, {processor}", text.strip())
    if not good:
        yield judged(good, name, text)


def runs(paths: Sequence[Path], root: Path, work: Path, python: Path, versions: Sequence[str]) -> Iterator[Result]:
    """Install this machine's wheel, without a compiler, and compare its texts with that of the checkout."""
    wheels = [path for path in paths if path.suffix == ".whl" and machine_of(path) == platform.machine()]
    if not wheels:
        yield "skipped", "texts", f"there is no wheel for {platform.machine()}"
        return
    (wheel,) = wheels
    good, text = output(root / ".venv" / "bin" / "edgedec", *GENERATE)
    if not good:
        yield judged(good, "text of the checkout", text)
        return
    expected = json.loads(text)["text"]
    uv, made = python.with_name("uv"), list[Path]()
    for version in versions:
        name, interpreter = f"Python {version}", find_python(version)
        if interpreter is None:
            yield "skipped", name, f"there is no python{version} on the PATH or among pyenv's versions"
            continue
        environment = work / f"python{version}"
        shutil.rmtree(environment, ignore_errors=True)
        good, text = output(uv, "venv", "--quiet", "--python", interpreter, environment)
        command = (uv, "pip", "install", "--quiet", "--no-build", "--python", environment / "bin" / "python", wheel)
        good, text = output(*command) if good else (good, text)
        if not good:
            yield judged(good, name, text)
            continue
        made.append(environment)
        yield _same(name, expected, environment / "bin" / "edgedec", home=work / f"home{version}")
    if made:
        yield _old_processor(expected, made[0], work / f"home{made[0].name.removeprefix('python')}")
    yield _uv_tool(expected, uv, wheel, made[-1] / "bin" / "python" if made else Path(sys.executable), work)


def _same(name: str, expected: str, *command: str | Path, home: Path, fresh: bool = True) -> Result:
    """Compare the text of an installed edgedec, which runs without a compiler and with a home of its own."""
    if fresh:
        shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True, exist_ok=True)
    variables = {"HOME": str(home), "PATH": "/no/compiler", "LC_ALL": "C.UTF-8"}
    good, text = output(*command, *GENERATE, env=variables)
    if not good:
        return judged(good, name, text)
    answer = json.loads(text)
    if answer["text"] != expected:
        return judged(False, name, f"another text: {answer['text']!r}")
    return judged(True, name, f"the same text, kernels {answer['timings']['kernel']}")


def _old_processor(expected: str, environment: Path, home: Path) -> Result:
    name = f"{OLD_PROCESSOR}, without AVX"
    emulator = shutil.which("qemu-x86_64")
    if emulator is None or platform.machine() != "x86_64":
        return "skipped", name, "needs qemu-x86_64 on x86-64 (Debian: qemu-user)"
    command = (emulator, "-cpu", OLD_PROCESSOR, environment / "bin" / "python", environment / "bin" / "edgedec")
    result = _same(name, expected, *command, home=home, fresh=False)  # making the bundle would take minutes
    return judged(False, name, result[2]) if result[0] == "ok" and "avx" in result[2] else result


def _uv_tool(expected: str, uv: Path, wheel: Path, interpreter: Path, work: Path) -> Result:
    name, folder = "uv tool install", work / "uv-tool"
    shutil.rmtree(folder, ignore_errors=True)
    variables = {**os.environ, "UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    command = (uv, "tool", "install", "--quiet", "--no-build", "--python", interpreter, wheel)
    good, text = output(*command, env=variables)
    return _same(name, expected, folder / "bin" / "edgedec", home=folder / "home") if good else judged(good, name, text)
