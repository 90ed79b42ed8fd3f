"""Start the Python of a root file system, and install edgedec's wheel, NumPy and pynq for it."""

from __future__ import annotations

import email
import re
import shutil
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgedec.errors import ToolError
from edgedec.least_versions import NUMPY, PYNQ, dotted
from tests.boards.commands import run

__all__ = ["Start", "build_wheel", "install_in_root", "system_version", "write_stand_in"]

PROJECT = Path(__file__).resolve().parents[2]
LIBRARIES = ("lib/{0}", "usr/lib/{0}", "usr/lib/{0}/blas", "usr/lib/{0}/lapack")
MARK = "+system"  # the end of a version that the package index cannot have


@dataclass(frozen=True, kw_only=True)
class Start:
    """Start the Python of a root file system.

    Attributes:
        emulator: program that runs the root's programs; empty: this machine does, by the root's loader of libraries.
        triplet: name of the root's system, and of its folders of libraries.
        python: the version, such as 3.10.
    """

    root: Path
    emulator: str
    triplet: str
    python: str

    @property
    def site(self) -> Path:
        """The folder of the packages for Python that are not the root's own."""
        return self.root / "opt/edgedec"

    def run(self, *words: str | Path, message: str = "") -> str:
        """Return what the root's Python prints, given its arguments and the text for its standard input.

        Raises:
            ToolError: it failed.
        """
        variables = {"PYTHONHOME": f"{self.root}/usr", "PYTHONPATH": f"{self.site}", "PYTHONNOUSERSITE": "1"}
        variables["PYTHONDONTWRITEBYTECODE"] = "1"
        # Nothing was configured, so the links to the libraries of linear algebra, which NumPy needs, are not there.
        libraries = ":".join(f"{self.root}/{place.format(self.triplet)}" for place in LIBRARIES)
        interpreter = self.root / f"usr/bin/python{self.python}"
        if self.emulator:
            variables["LD_LIBRARY_PATH"] = libraries
            settings = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
            command: list[str | Path] = [self.emulator, "-L", self.root, *settings]
            variables = {}
        else:
            (loader,) = (self.root / f"lib/{self.triplet}").glob("ld-linux*")
            command = [loader, "--inhibit-cache", "--library-path", libraries]
        return run(*command, interpreter, *words, environment=variables, cwd=self.root, message=message)


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


def system_version(root: Path, name: str) -> str:
    """Return the version of a package for Python that the root's own packages have.

    Raises:
        ToolError: they do not have it.
    """
    places = (root / "usr/lib/python3/dist-packages").glob(f"{name}-*-info")
    for place in places:
        if match := re.match(rf"{name}-(\d+(\.\d+)*)", place.name):
            return match[1]
    raise ToolError(f"the packages of {root} have no {name} for Python")


def write_stand_in(folder: Path, name: str, version: str) -> str:
    """Write a wheel without content, in whose place the package that is there is imported, and return its requirement."""
    about = f"{name}-{version}{MARK}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}{MARK}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}{MARK}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return f"{name}=={version}{MARK}"


def install_in_root(folder: Path, wheel: Path, start: Start, made: Mapping[str, str]) -> None:
    """Install the wheel, NumPy and pynq for the Python of a root, whose pip judges what fits it.

    pynq has no wheels: its own packages are built here, hold Python alone, and are unpacked.

    Args:
        made: packages for Python that are there, with their versions, and that are not fetched.

    Raises:
        ToolError: a package has no wheel for the machine, which pip names.
    """
    built, wheels = folder / "pynq", folder / "wheels"
    here = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*here, "wheel", "--no-deps", "-w", built, f"pynq=={dotted(PYNQ)}", "pynqutils<0.2", "pynqmetadata>=0.2")
    run(*here, "download", "--no-deps", "-d", wheels, "pip")
    (pip,) = wheels.glob("pip-*.whl")
    needed: list[str] = []
    for archive in sorted(built.glob("*.whl")):
        with zipfile.ZipFile(archive) as content:
            content.extractall(start.site)
            (name,) = (name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
            lines = email.message_from_bytes(content.read(name)).get_all("Requires-Dist", [])
        needed += [line for line in lines if not re.match(r"pynq|numpy", line) and "extra ==" not in line]
    needed += [write_stand_in(wheels, name, version) for name, version in made.items()]
    if "numpy" not in made:
        # Only Python 3.10 has wheels of the least NumPy.
        needed.append(f"numpy=={dotted(NUMPY)}" if start.python == "3.10" else f"numpy>={dotted(NUMPY)},<2")
    options = ("--quiet", "--no-compile", "--target", start.site, "--only-binary", ":all:", "--find-links", wheels)
    start.run(pip / "pip", "--disable-pip-version-check", "install", *options, wheel, "pycparser<3", *needed)
    for about in start.site.glob(f"*{MARK}.dist-info"):
        shutil.rmtree(about)
