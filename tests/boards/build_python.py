"""Build Python 3.10 for a board's processor from the sources of Ubuntu 22.04's package, where its packages cannot be had.

The compiler is a cross-compiler, and headers and libraries are those of a root file system of Debian 12. What is built is
Python itself, without Ubuntu's patches, tests, pip and optimization by profiles.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tarfile
import urllib.request
from pathlib import Path

from edgedec.errors import ToolError
from tests.boards.commands import run
from tests.support.pythons import find_python

__all__ = ["PACKAGES", "VERSION", "add_python", "missing_tools"]

VERSION = "3.10.4"  # the version in Ubuntu 22.04 as it was released
ARCHIVE = f"http://archive.ubuntu.com/ubuntu/pool/main/p/python3.10/python3.10_{VERSION}.orig.tar.xz"
# The hash that jammy's list of sources, dists/jammy/main/source/Sources.gz, states for the archive.
SHA256 = "80bf925f571da436b35210886cf79f6eb5fa5d6c571316b73568343451f77a19"
# Debian's packages with the headers and libraries of the modules that edgedec and pynq import.
PACKAGES = ("libc6-dev", "zlib1g-dev", "libffi-dev", "libssl-dev", "libbz2-dev", "liblzma-dev")
MODULES = (
    "_bz2",
    "_ctypes",
    "_hashlib",
    "_lzma",
    "_ssl",
    "mmap",
    "zlib",
)  # modules that setup.py leaves out in silence
# Answers of `configure` that it would get from a program of the target.
ANSWERS = ("ac_cv_file__dev_ptmx=yes", "ac_cv_file__dev_ptc=no", "ac_cv_buggy_getaddrinfo=no")
OPTIONS = ("--prefix=/usr", "--without-ensurepip", "--disable-test-modules", "OPT=-O1 -DNDEBUG")


def missing_tools(triplet: str) -> list[str]:
    """Return the programs that the build needs and that are not installed, each with Debian's package that has it."""
    packages = {f"{triplet}-gcc": f"gcc-{triplet}", "make": "make"}
    missing = [
        f"{program} (package {package})" for program, package in packages.items() if shutil.which(program) is None
    ]
    # A cross-compiled Python is built with the help of one of the same version that runs here.
    return missing + ([] if find_python("3.10") else ["python3.10 that runs here"])


def add_python(root: Path, folder: Path, triplet: str, kept: Path) -> str:
    """Build Python for a processor, or take the build that is kept, and install it in a root file system.

    Args:
        root: root file system of the processor with ``PACKAGES``.
        folder: place for files that are of no use afterwards.
        triplet: name of the processor's system, such as ``aarch64-linux-gnu``.
        kept: folder of builds, which gets this one.

    Returns:
        What was done, as a phrase.

    Raises:
        ToolError: a program is missing or fails, the archive cannot be fetched, or it is not the one of the hash.
    """
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]  # another recipe makes another build
    built = kept / f"python-{VERSION}-{triplet}-{recipe}"
    done = "taken as it was built before"
    if not built.is_dir():
        if missing := missing_tools(triplet):
            raise ToolError(f"there is no {', no '.join(missing)}")
        _build(root, fetch(folder), folder, triplet)
        kept.mkdir(parents=True, exist_ok=True)
        (folder / "installed").rename(built)
        done = "built"
    shutil.copytree(built, root, symlinks=True, dirs_exist_ok=True)
    return f"Python {VERSION} {done} from the sources of Ubuntu's package ({built})"


def fetch(folder: Path) -> Path:
    """Fetch the archive of the sources.

    Raises:
        ToolError: it cannot be fetched, or is another.
    """
    path = folder / ARCHIVE.rpartition("/")[2]
    try:
        with urllib.request.urlopen(ARCHIVE, timeout=60) as source:
            path.write_bytes(source.read())
    except OSError as error:
        raise ToolError(f"{ARCHIVE} cannot be fetched: {error}") from error
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHA256:
        raise ToolError(f"{ARCHIVE} has the SHA-256 {found}, not {SHA256}, and is not used; fetch it by another way")
    return path


def link_within(root: Path, triplet: str) -> None:
    """Let the links to libraries that begin at the root of the file system point into it.

    They name files of this machine otherwise, and a linker that does not find them takes static libraries in their place.
    """
    for link in (root / f"usr/lib/{triplet}").glob("*.so"):
        if link.is_symlink() and link.readlink().is_absolute():
            target = os.path.relpath(root / link.readlink().relative_to("/"), link.parent)
            link.unlink()
            link.symlink_to(target)


def _build(root: Path, archive: Path, folder: Path, triplet: str) -> None:
    """Build in ``folder/build`` and install in ``folder/installed``."""
    with tarfile.open(archive) as content:
        content.extractall(folder, filter="data")
    source, build, installed = folder / f"Python-{VERSION}", folder / "build", folder / "installed"
    helper = find_python("3.10")
    assert helper is not None
    environment = {"PATH": f"{helper.parent}{os.pathsep}{os.environ['PATH']}"}
    build.mkdir()
    link_within(root, triplet)
    compiler = f"CC={triplet}-gcc --sysroot={root}"
    hosts = (f"--host={triplet}", f"--build={platform.machine()}-linux-gnu")
    run(source / "configure", *hosts, *OPTIONS, compiler, *ANSWERS, environment=environment, cwd=build)
    run("make", "-j1", environment=environment, cwd=build)
    run("make", "-j1", "altbininstall", "sharedinstall", f"DESTDIR={installed}", environment=environment, cwd=build)
    if b"libm.so.6\0" not in (installed / "usr/bin/python3.10").read_bytes():
        raise ToolError(
            "Python was linked without the shared library of mathematics, which modules of NumPy take for granted"
        )
    library = installed / "usr/lib/python3.10"
    found = {path.name.partition(".")[0] for path in (library / "lib-dynload").iterdir()}
    if missing := [name for name in MODULES if name not in found]:
        raise ToolError(f"Python was built without {', '.join(missing)}; are Debian's {', '.join(PACKAGES)} in {root}?")
    (settings,) = build.glob("build/lib.*/_sysconfigdata_*.py")
    shutil.copy(settings, library)
    # `make libinstall`, which copies both, would compile each module three times.
    shutil.copytree(source / "Lib", library, dirs_exist_ok=True, ignore=shutil.ignore_patterns("test", "tests"))
