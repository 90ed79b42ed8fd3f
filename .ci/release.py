"""Build what is released into dist/, check it, and print files, hashes and checks: ``make release``.

Usage: ``.ci/release.py [--machines x86_64,aarch64] [--twice] [--pythons 3.10,...]``. The files are an sdist of the last
commit and, from that sdist, a wheel ``py3-none-manylinux_2_X`` for each machine. Their bytes follow from the commit, the
compiler and the tools: times are the commit's, names are sorted. ``--twice`` builds everything again in another folder and
compares; ``--check`` builds nothing, and checks what is in dist/.

A check that cannot run here is reported as skipped, with what it needs. Exit codes: 1 a check failed, 3 a tool is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import release_checks as checks
from release_archives import repack_sdist, repack_wheel, tool_requirements, unpack

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "release"
# The C++ library is linked statically, because GCC 12's is newer than many systems'. libgcc is not: its static unwinder
# needs a function of glibc 2.35, and every system has the shared one. Unused parts of the library need glibc 2.36.
FLAGS = ("-static-libstdc++", "-Wl,--gc-sections", "-Wl,--exclude-libs,ALL", "-s")
COMPILERS = {"x86_64": "g++", "aarch64": "aarch64-linux-gnu-g++"}
PACKAGES = {"x86_64": "g++", "aarch64": "g++-aarch64-linux-gnu"}  # Debian's names
PYTHONS = "3.10,3.11,3.12,3.13,3.14"  # the least that the package states, and all newer ones


class MissingToolError(Exception):
    """A tool that every release needs is not installed."""


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """Return the standard output of a command.

    Raises:
        SystemExit: it fails; its output is printed.
    """
    words = [str(word) for word in command]
    process = subprocess.run(
        words, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )
    if process.returncode:
        sys.exit(f"{' '.join(words)} ended with {process.returncode}:\n{process.stdout}{process.stderr}")
    return process.stdout


def tools() -> Path:
    """Return the Python of an environment with the packages of the extra ``release``, which is made if it is not there."""
    folder, requirements = WORK / "tools", tool_requirements(ROOT / "pyproject.toml")
    stamp = folder / "requirements"
    if not stamp.is_file() or stamp.read_text() != "\n".join(requirements):
        run(sys.executable, "-m", "venv", "--clear", folder)
        run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
        stamp.write_text("\n".join(requirements))
    return folder / "bin" / "python"


def build(folder: Path, python: Path, machines: list[str], epoch: int) -> list[Path]:
    """Build the sdist and the wheels of the last commit in ``folder`` and return their paths."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "tree").mkdir(parents=True)
    run("git", "archive", "--output", folder / "tree.tar", "HEAD")
    with tarfile.open(folder / "tree.tar") as archive:
        archive.extractall(folder / "tree", filter="data")
    environment = {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
    command = (python, "-m", "build", "--no-isolation", "--outdir", folder / "raw")
    run(*command, "--sdist", folder / "tree", env=environment)
    (raw,) = (folder / "raw").glob("*.tar.gz")
    made = [repack_sdist(raw, folder / "made" / raw.name, epoch)]
    for machine in machines:
        (source,) = unpack(made[0], folder / machine).iterdir()
        compiler = " ".join([COMPILERS[machine], *FLAGS])
        run(*command, "--wheel", source, env={**environment, "CXX": compiler})
        (raw,) = (folder / "raw").glob("*.whl")
        made.append(repack_wheel(raw, folder / "made", machine, epoch))
        raw.unlink()
    return made


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", default=",".join(COMPILERS), help="machines whose wheels are built")
    parser.add_argument("--twice", action="store_true", help="build everything again and compare the bytes")
    parser.add_argument("--pythons", default=PYTHONS, help="versions that the wheel of this machine is tried on")
    parser.add_argument("--check", action="store_true", help="build nothing")
    options = parser.parse_args()
    machines = options.machines.split(",")
    try:
        for machine in machines:
            if machine not in COMPILERS:
                parser.error(f"--machines: no {machine!r}; known: {', '.join(COMPILERS)}")
            if shutil.which(COMPILERS[machine]) is None and not options.check:
                raise MissingToolError(f"{COMPILERS[machine]} is missing (Debian: apt install {PACKAGES[machine]})")
        for tool in ("git", "readelf"):
            if shutil.which(tool) is None:
                raise MissingToolError(f"{tool} is missing")
    except MissingToolError as error:
        print(error, file=sys.stderr)
        return 3
    if run("git", "status", "--porcelain"):
        print("built from the last commit: changes that are not committed are left out")
    epoch = int(run("git", "log", "-1", "--format=%ct"))
    python, dist = tools(), ROOT / "dist"
    if not options.check:
        made = build(WORK / "first", python, machines, epoch)
        shutil.rmtree(dist, ignore_errors=True)
        dist.mkdir()
        for path in made:
            shutil.copy2(path, dist)
    if not dist.is_dir():
        print("dist/ is missing: run `make release` first", file=sys.stderr)
        return 3
    files = sorted(dist.iterdir())
    for path in files:
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e6:.1f} MB\n  sha256 {sha256(path)}")
    results = [
        *checks.files(files, ROOT, WORK, python),
        *checks.runs(files, ROOT, WORK, python, options.pythons.split(",")),
    ]
    if options.twice:
        again = {path.name: sha256(path) for path in build(WORK / "second-time", python, machines, epoch)}
        other = [path.name for path in files if again.get(path.name) != sha256(path)]
        detail = f"other bytes: {', '.join(other)}" if other else f"{len(files)} files"
        results.append(("FAILED" if other else "ok", "same bytes twice", detail))
    else:
        results.append(("skipped", "same bytes twice", "--twice builds everything again"))
    for status, name, detail in results:
        print(f"{status:8}{name}: {detail}")
    count = {word: sum(status == word for status, _, _ in results) for word in ("ok", "skipped", "FAILED")}
    print(f"checks: {count['ok']} passed, {count['skipped']} skipped, {count['FAILED']} failed")
    return 1 if count["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
