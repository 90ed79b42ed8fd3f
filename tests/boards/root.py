"""Write two texts against the simulated board with the software of a board: in a root file system of its processor, or in
an environment of this machine with the least versions.

    .venv/bin/python -m tests.boards.root --arch arm64 --python 3.10
    .venv/bin/python -m tests.boards.root --arch host --python 3.10

The root file system is made of the packages of Debian or Ubuntu, by ``debootstrap``. Where Ubuntu's packages for arm64 are
not to be had, its Python is built from the sources of its package. The root's Python runs under qemu-user, or, if the
processor is that of this machine, by the root's own loader of libraries. edgedec's wheel is installed for it with NumPy and
pynq 3.0.1, and opens a board bundle with ``--device pynq``. The texts of ``generate`` and ``chat`` must be those of
``--device interpreter`` with the software of this environment.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from edgedec.errors import EdgedecError, ToolError
from edgedec.least_versions import NUMPY, PYNQ, dotted
from tests.boards import build_python, compile_ml_dtypes
from tests.boards.commands import run
from tests.boards.install import Start, build_wheel, install_in_root, system_version
from tests.support.pythons import find_python

PROJECT = Path(__file__).resolve().parents[2]
UBUNTU_KEYS = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
RUN = Path(__file__).with_name("write_on_simulated_board.py")
TOKENS = 16
MESSAGE = "w4 w5\n"
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
# Python of a root -> the release that has it. Debian has no release with 3.10; Ubuntu 22.04 is what Kria boards run.
RELEASES = {"3.10": "jammy", "3.11": "bookworm"}
SYSTEMS = {"jammy": "Ubuntu 22.04", "bookworm": "Debian 12"}
PACKAGES = ("python3", "python3-distutils", "libstdc++6")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A processor of boards, or that of PCs.

    Attributes:
        emulator: program that runs its programs; empty: this machine is such a processor.
        triplet: name of its system, and of its folders of libraries.
        system: packages for Python that are those of Debian or Ubuntu, and not wheels of the package index, each with the
            name of its package there.
        builds: Python is built where Ubuntu's packages cannot be had.
        compiles: the package ml_dtypes is compiled, because the index has no wheel of it.
    """

    emulator: str
    triplet: str
    system: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    builds: bool = False
    compiles: bool = False


MACHINES = {
    "arm64": Machine(
        emulator="qemu-aarch64-static",
        triplet="aarch64-linux-gnu",
        builds=True,
    ),
    # The index has no wheels of these for 32-bit Arm.
    "armhf": Machine(
        emulator="qemu-arm-static",
        triplet="arm-linux-gnueabihf",
        system=MappingProxyType(
            {
                "numpy": "python3-numpy",
                "cffi": "python3-cffi",
                "PyYAML": "python3-yaml",  # tokenizers needs a package that needs it
            }
        ),
        compiles=True,
    ),
    # The packages of Ubuntu that Kria boards have, for another processor.
    "amd64": Machine(
        emulator="",
        triplet="x86_64-linux-gnu",
        system=MappingProxyType({"numpy": "python3-numpy"}),
    ),
}


def missing_tools(arch: str, python: str) -> list[str]:
    """Return what every run needs and is not installed: programs, each with Debian's package that has it."""
    if arch == "host":
        return [] if find_python(python) else [f"python{python} (with its venv module)"]
    machine = MACHINES[arch]
    packages = {"debootstrap": "debootstrap", "dpkg-deb": "dpkg"}
    if machine.emulator:
        packages[machine.emulator] = "qemu-user-static"
    if machine.compiles:
        packages[compile_ml_dtypes.compiler(machine.triplet)] = f"g++-{machine.triplet}"
    missing = [
        f"{program} (package {package})" for program, package in packages.items() if shutil.which(program) is None
    ]
    native = machine.triplet == f"{platform.machine()}-linux-gnu"
    return missing + ([] if machine.emulator or native else [f"processor here that runs programs for {arch}"])


def unpack_release(folder: Path, arch: str, release: str, mirror: str, packages: Sequence[str]) -> None:
    """Make ``root`` of the packages of a minimal system and others, unpacked and not configured.

    Args:
        mirror: address of the packages; empty if debootstrap is to choose it.

    Raises:
        ToolError: the packages, or the keys that they are signed with, cannot be had.
    """
    if release == "jammy" and not UBUNTU_KEYS.is_file():  # debootstrap would look for the release at Debian
        raise ToolError(f"there is no {UBUNTU_KEYS} (package ubuntu-keyring of Ubuntu and of Debian 13)")
    fetched = folder / "packages"
    run(
        "debootstrap",
        "--download-only",
        f"--arch={arch}",
        "--variant=minbase",
        "--components=main,universe" if release == "jammy" else "--components=main",
        f"--include={','.join(packages)}",
        release,
        fetched,
        *([mirror] if mirror else []),
    )
    for package in sorted((fetched / "var/cache/apt/archives").glob("*.deb")):
        run("dpkg-deb", "-x", package, folder / "root")
    shutil.rmtree(fetched)


def make_root(folder: Path, arch: str, python: str, mirror: str, kept: Path) -> str:
    """Make the root file system in ``root``, and return what it is made of.

    Args:
        kept: folder of Pythons that were built.

    Raises:
        ToolError: the packages cannot be fetched, and Python cannot be built in their place.
    """
    machine, release = MACHINES[arch], RELEASES[python]
    packages = [*PACKAGES, *machine.system.values()]
    packages += compile_ml_dtypes.PACKAGES if machine.compiles else ()
    try:
        unpack_release(folder, arch, release, mirror, packages)
    except ToolError as error:
        shutil.rmtree(folder / "packages", ignore_errors=True)
        reason = f"the packages of {release} for {arch}, which has Python {python}, cannot be fetched here: {error}"
        others = ", ".join(f"--python {other}" for other in RELEASES if other != python)
        hint = f"A root with another Python is a stand-in: {others}; --arch host runs Python {python} on this machine"
        if release != "jammy" or not machine.builds:
            raise ToolError(f"{reason}\n{hint}") from error
        try:
            unpack_release(folder, arch, "bookworm", mirror, [*packages, *build_python.PACKAGES])
            how = build_python.add_python(folder / "root", folder, machine.triplet, kept)
        except ToolError as second:
            raise ToolError(f"{reason}\nIts Python cannot be built either: {second}\n{hint}") from second
        return f"{SYSTEMS['bookworm']} for {arch}; {how}, because {reason}"
    return f"{SYSTEMS[release]} for {arch}, with its own Python"


def install_here(folder: Path, wheel: Path, python: Path) -> Path:
    """Make an environment with the least versions, and return its Python."""
    run(python, "-m", "venv", folder / "environment")
    inside = folder / "environment/bin/python"
    pip = (inside, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, "wheel", "setuptools<70")
    run(*pip, wheel, f"numpy=={dotted(NUMPY)}", f"pynq=={dotted(PYNQ)}", "pycparser<3")
    return inside


def write_texts(folder: Path, arch: str, python: str, bundle: Path, mirror: str, kept: Path) -> tuple[str, str]:
    """Return what the software is, and what the script prints that writes texts against the simulated board."""
    program = (RUN, bundle, str(TOKENS))
    if arch == "host":
        found = find_python(python)
        assert found is not None
        inside = install_here(folder, build_wheel(folder), found)
        return f"{found} of this machine", run(inside, "-I", *program, cwd=folder, message=MESSAGE)
    machine = MACHINES[arch]
    how = make_root(folder, arch, python, mirror, kept)
    start = Start(root=folder / "root", emulator=machine.emulator, triplet=machine.triplet, python=python)
    made = {name: system_version(start.root, name) for name in machine.system}
    if machine.compiles:
        compile_ml_dtypes.compile_ml_dtypes(folder, start)
        made["ml_dtypes"] = compile_ml_dtypes.VERSION
        how += f"; ml_dtypes {compile_ml_dtypes.VERSION} compiled here"
    install_in_root(folder, build_wheel(folder), start, made)
    return how, start.run(*program, message=MESSAGE)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.boards.root", description=__doc__)
    parser.add_argument("--arch", choices=(*MACHINES, "host"), default="arm64")
    parser.add_argument("--python", choices=tuple(RELEASES), default="3.10")
    parser.add_argument("--folder", type=Path, default=PROJECT / "build/board-root", help="emptied first")
    parser.add_argument(
        "--kept", type=Path, default=PROJECT / "build/board-python", help="folder of Pythons that were built"
    )
    parser.add_argument("--mirror", default="", help="where debootstrap finds the packages; default: its own choice")
    given = parser.parse_args(arguments)
    from tests.runtime.accelerator.support import make_board_bundle

    try:
        if missing := missing_tools(given.arch, given.python):
            raise ToolError(f"there is no {', no '.join(missing)}")
        folder = given.folder.resolve()
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "parts").mkdir(parents=True)
        bundle = make_board_bundle.make(folder / "parts", template=TEMPLATE).write(folder / "tiny.board")
        expected = run(sys.executable, RUN, "--device", "interpreter", bundle, str(TOKENS), message=MESSAGE)
        how, found = write_texts(folder, given.arch, given.python, bundle, given.mirror, given.kept.resolve())
    except EdgedecError as error:
        print(f"tests.boards.root: {error}", file=sys.stderr)
        return 3
    versions, _, texts = found.partition("\n")
    same = texts == expected.partition("\n")[2]
    print(f"{' '.join(how.split())}\n{versions}\n{texts}", end="")
    print("the same texts as here" if same else f"here the texts are others: {expected}")
    return 0 if same and texts else 1


if __name__ == "__main__":
    sys.exit(main())
