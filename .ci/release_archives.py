"""Archives whose bytes follow from their content alone, and what the libraries within need of a system."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
import shutil
import subprocess
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path

__all__ = ["library_needs", "needed_glibc", "repack_sdist", "repack_wheel", "tool_requirements", "unpack"]

OLDEST_GLIBC = (2, 17)  # version of glibc of the first manylinux tag that names one
_VERSION = re.compile(r"\bName: (GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)")


def tool_requirements(pyproject: Path) -> list[str]:
    """Return the requirements of the extra ``release``."""
    extras: dict[str, list[str]] = tomllib.loads(pyproject.read_text("utf-8"))["project"]["optional-dependencies"]
    return extras["release"]


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack an sdist or a wheel into a new folder and return it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(folder)
    else:
        with tarfile.open(archive) as sdist:
            sdist.extractall(folder, filter="data")
    return folder


def library_needs(library: Path) -> dict[str, tuple[int, ...]]:
    """Return the newest version of each interface that an ELF library needs, such as ``{"GLIBC": (2, 34)}``."""
    output = subprocess.run(["readelf", "-VW", str(library)], capture_output=True, text=True, check=True).stdout
    newest: dict[str, tuple[int, ...]] = {}
    for interface, version in _VERSION.findall(output):
        numbers = tuple(map(int, version.split(".")))
        newest[interface] = max(numbers, newest.get(interface, ()))
    return newest


def needed_glibc(folder: Path) -> tuple[int, ...]:
    """Return the oldest version of glibc that all libraries below ``folder`` run with."""
    needs = [library_needs(library).get("GLIBC", ()) for library in folder.rglob("*.so")]
    return max([OLDEST_GLIBC, *needs])


def repack_sdist(source: Path, target: Path, epoch: int) -> Path:
    """Write a sdist with the same files in the order of their names, all of the time ``epoch``, and return its path."""
    plain = io.BytesIO()
    with tarfile.open(source) as old, tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            if not member.isfile():
                continue
            info = tarfile.TarInfo(member.name)
            info.size, info.mtime, info.mode = member.size, epoch, 0o755 if member.mode & 0o100 else 0o644
            new.addfile(info, old.extractfile(member))
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=epoch) as packed:
        packed.write(plain.getvalue())
    return target


def repack_wheel(source: Path, folder: Path, machine: str, epoch: int) -> Path:
    """Write a wheel with the same files, the true platform, sorted names and the time ``epoch``, and return its path.

    The platform follows from the symbols of glibc that the libraries need. Source: PEP 600; the binary distribution format.
    """
    glibc = needed_glibc(unpack(source, source.with_suffix(".unpacked")))
    tag = f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_{machine}"
    with zipfile.ZipFile(source) as old:
        files = {name: old.read(name) for name in old.namelist() if not name.endswith("/")}
    (record,) = (name for name in files if name.endswith(".dist-info/RECORD"))
    about = record.replace("RECORD", "WHEEL")
    files[about] = re.sub(rb"(?m)^Tag: .*$", f"Tag: {tag}".encode(), files[about])
    del files[record]
    lines = [f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in sorted(files.items())]
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{record.partition('.dist-info')[0]}-{tag}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        for name, data in [*sorted(files.items(), key=lambda item: (item[0] == record, item[0]))]:
            info = zipfile.ZipInfo(name, time.gmtime(max(epoch, 315_532_800))[:6])  # a zip file's time begins in 1980
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # Unix, whose permissions follow
            info.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            new.writestr(info, data)
    return target


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
