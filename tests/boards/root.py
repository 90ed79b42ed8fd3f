"""Write 16 tokens against the simulated board with the software of a board: in a root file system of its processor, or in an
environment of this machine with the least versions.

    .venv/bin/python -m tests.boards.root --arch arm64 --python 3.11
    .venv/bin/python -m tests.boards.root --arch host --python 3.10

The root file system is made of the packages of Debian or Ubuntu, by ``debootstrap``, and its Python runs under
``qemu-aarch64-static``. In both cases edgedec's wheel is installed there with NumPy and pynq 3.0.1, and opens a board bundle
with ``--device pynq``. The text must be that of ``--device interpreter`` with the software of this environment.
"""

from __future__ import annotations

import argparse
import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgedec.errors import EdgedecError, ToolError
from edgedec.least_versions import NUMPY, PYNQ, dotted

PROJECT = Path(__file__).resolve().parents[2]
UBUNTU_KEYS = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
RUN = Path(__file__).with_name("write_on_simulated_board.py")
TOKENS = 16
# Python of a root -> the release that has it. Debian has no release with 3.10; Ubuntu 22.04 is what Kria boards run.
RELEASES = {"3.10": "jammy", "3.11": "bookworm"}
STEP_LIMIT_S = 1800  # seconds for one step


@dataclass(frozen=True)
class Machine:
    """A processor of boards: its emulator, and what pip calls the platforms whose wheels it runs."""

    emulator: str
    platforms: tuple[str, ...]


MACHINES = {
    "arm64": Machine(
        "qemu-aarch64-static",
        ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_27_aarch64", "manylinux_2_28_aarch64"),
    ),
    "armhf": Machine("qemu-arm-static", ("manylinux2014_armv7l", "manylinux_2_17_armv7l", "manylinux_2_31_armv7l")),
}


def run(*command: str | Path, environment: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Return the standard output of a command.

    Raises:
        ToolError: there is no such program, or it failed; its last lines are in the message.
    """
    words = [str(word) for word in command]
    try:
        process = subprocess.run(
            words,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=STEP_LIMIT_S,
        )
    except FileNotFoundError as error:
        raise ToolError(f"there is no {words[0]}; see the head of tests/boards/root.py") from error
    if process.returncode:
        output = (process.stdout + process.stderr).strip().splitlines()
        raise ToolError(f"{words[0]} failed: " + "\n  ".join(output[-6:]))
    return process.stdout


def missing_tools(arch: str, python: str) -> list[str]:
    """Return the programs that are needed and not installed, each with Debian's package that has it."""
    if arch == "host":
        return [] if usable(f"python{python}") else [f"python{python} (with its venv module)"]
    packages = {"debootstrap": "debootstrap", "dpkg-deb": "dpkg", MACHINES[arch].emulator: "qemu-user-static"}
    missing = [
        f"{program} (package {package})" for program, package in packages.items() if shutil.which(program) is None
    ]
    if RELEASES[python] == "jammy" and not UBUNTU_KEYS.is_file():  # debootstrap would look for the release at Debian
        missing.append(f"{UBUNTU_KEYS} (package ubuntu-keyring of Ubuntu)")
    return missing


def usable(program: str) -> bool:
    """Return whether a program is a Python that starts. pyenv puts stand-ins on PATH that do not."""
    try:
        return subprocess.run([program, "-c", "import venv"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def make_root(folder: Path, arch: str, python: str, mirror: str) -> None:
    """Make the root file system: the packages of a minimal system with Python, unpacked and not configured.

    Args:
        mirror: address of the packages; empty if debootstrap is to choose it.

    Raises:
        ToolError: the packages cannot be fetched.
    """
    packages = folder / "packages"
    release = RELEASES[python]
    try:
        run(
            "debootstrap",
            "--download-only",
            f"--arch={arch}",
            "--variant=minbase",
            "--include=python3,python3-distutils,libstdc++6",
            release,
            packages,
            *([mirror] if mirror else []),
        )
    except ToolError as error:
        others = ", ".join(f"--python {other}" for other in RELEASES if other != python)
        raise ToolError(
            f"the packages of {release} for {arch}, which has Python {python}, cannot be fetched here: {error}\n"
            f"A root with another Python is a stand-in for it: {others}; --arch host runs Python {python} on this machine"
        ) from error
    for package in sorted((packages / "var/cache/apt/archives").glob("*.deb")):
        run("dpkg-deb", "-x", package, folder / "root")
    shutil.rmtree(packages)


def build_wheel(folder: Path) -> Path:
    """Build edgedec's wheel without machine code: the simulated board needs no CPU kernels."""
    source = folder / "source"
    source.mkdir()
    files = run("git", "ls-files", "-co", "--exclude-standard", cwd=PROJECT).splitlines()
    for name in files:
        if (PROJECT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PROJECT / name, source / name)
    command = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, source)
    run(*command, environment={"CXX": "no-compiler"}, cwd=source)
    (wheel,) = folder.glob("edgedec_toolchain-*.whl")
    return wheel


def install_in_root(folder: Path, wheel: Path, machine: Machine, python: str) -> None:
    """Install the wheel, NumPy and pynq for the root's Python, in ``root/opt/edgedec``.

    pynq has no wheels: its own packages are built here, hold Python alone, and are unpacked.

    Raises:
        ToolError: a package has no wheel for the machine, which pip names.
    """
    site = folder / "root/opt/edgedec"
    built = folder / "pynq"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "-w", built, f"pynq=={dotted(PYNQ)}", "pynqutils<0.2", "pynqmetadata>=0.2")
    needed: list[str] = []
    for archive in sorted(built.glob("*.whl")):
        with zipfile.ZipFile(archive) as content:
            content.extractall(site)
            (name,) = (name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
            lines = email.message_from_bytes(content.read(name)).get_all("Requires-Dist", [])
        needed += [line for line in lines if not re.match(r"pynq|numpy", line) and "extra ==" not in line]
    # Only Python 3.10 has wheels of the least NumPy.
    numpy = f"numpy=={dotted(NUMPY)}" if python == "3.10" else f"numpy>={dotted(NUMPY)},<2"
    platforms = [word for name in machine.platforms for word in ("--platform", name)]
    where: tuple[str | Path, ...] = (
        "--target",
        site,
        "--only-binary",
        ":all:",
        "--python-version",
        python,
        "--implementation",
        "cp",
        *platforms,
    )
    run(*pip, "install", "--quiet", *where, wheel, numpy, "pycparser<3", *needed)


def install_here(folder: Path, wheel: Path, python: str) -> Path:
    """Make an environment with the least versions, and return its Python."""
    run(f"python{python}", "-m", "venv", folder / "environment")
    inside = folder / "environment/bin/python"
    pip = (inside, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, "wheel", "setuptools<70")
    run(*pip, wheel, f"numpy=={dotted(NUMPY)}", f"pynq=={dotted(PYNQ)}", "pycparser<3")
    return inside


def write_text(folder: Path, arch: str, python: str, bundle: Path, mirror: str) -> str:
    """Return what the script prints that writes a text against the simulated board."""
    if arch == "host":
        return run(install_here(folder, build_wheel(folder), python), "-I", RUN, bundle, str(TOKENS), cwd=folder)
    machine = MACHINES[arch]
    make_root(folder, arch, python, mirror)
    install_in_root(folder, build_wheel(folder), machine, python)
    root = folder / "root"
    variables = {"PYTHONHOME": root / "usr", "PYTHONPATH": root / "opt/edgedec", "PYTHONNOUSERSITE": "1"}
    settings = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
    command: tuple[str | Path, ...] = (machine.emulator, "-L", root, *settings, root / f"usr/bin/python{python}")
    return run(*command, RUN, bundle, str(TOKENS), environment={"PYTHONDONTWRITEBYTECODE": "1"}, cwd=folder)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.boards.root", description=__doc__)
    parser.add_argument("--arch", choices=(*MACHINES, "host"), default="arm64")
    parser.add_argument("--python", choices=tuple(RELEASES), default="3.10")
    parser.add_argument("--folder", type=Path, default=PROJECT / "build/board-root", help="emptied first")
    parser.add_argument("--mirror", default="", help="where debootstrap finds the packages; default: its own choice")
    given = parser.parse_args(arguments)
    from tests.runtime.accelerator.support import make_board_bundle

    try:
        if missing := missing_tools(given.arch, given.python):
            raise ToolError(f"there is no {', no '.join(missing)}")
        folder = given.folder.resolve()
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "parts").mkdir(parents=True)
        bundle = make_board_bundle.make(folder / "parts").write(folder / "tiny.board")
        expected = run(sys.executable, RUN, "--device", "interpreter", bundle, str(TOKENS))
        found = write_text(folder, given.arch, given.python, bundle, given.mirror)
    except EdgedecError as error:
        print(f"tests.boards.root: {error}", file=sys.stderr)
        return 3
    versions, _, text = found.partition("\n")
    same = text == expected.partition("\n")[2]
    print(versions)
    print(text, end="")
    print("the same text as here" if same else f"here the text is another: {expected}")
    return 0 if same and text else 1


if __name__ == "__main__":
    sys.exit(main())
