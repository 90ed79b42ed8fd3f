"""Programs as folders: ``program.json`` with their properties and the hash of everything, ``code.bin`` and
``image.bin``.

The files may come from strangers: every error names the file, and nothing is allocated only because the manifest
demands it.
"""

import hashlib
import json
import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec import __version__
from edgedec.bundle.atomic import new_folder
from edgedec.bundle.manifest import manifest_hash
from edgedec.errors import BundleError, UnsupportedError, UsageError
from edgedec.hw.compiler.program import HostFacts, Program
from edgedec.hw.compiler.rough_head import RoughFacts
from edgedec.hw.compiler.taps import TapFacts
from edgedec.hw.config import ADDRESS_BITS, AcceleratorConfig
from edgedec.hw.isa.instructions import unpack_program

__all__ = ["CODE", "FORMAT", "IMAGE", "MANIFEST", "VERSION", "load_program", "save_program"]

FORMAT, VERSION = "edgedec-program", 2  # name and version of the format
MANIFEST, CODE, IMAGE = "program.json", "code.bin", "image.bin"  # names of the files
_MAX_MANIFEST_BYTES = 32 << 20  # bytes; enough for names of 65,536 instructions
_MAX_BEATS = 1 << 36  # beats of a buffer
_COUNTS = {"input_beats": _MAX_BEATS, "cache_beats": _MAX_BEATS, "region_bytes": 1 << ADDRESS_BITS}  # key -> limit
_KEYS = {"format", "version", "created_by", "config", "host", "names", "files", "sha256", *_COUNTS}


def save_program(program: Program, path: Path) -> None:
    """Write the folder, or replace an existing one of this format.

    Raises:
        UsageError: ``path`` is not such a folder.
        EdgedecError: the folder cannot be written; nothing is left of it.
    """
    with new_folder(path, MANIFEST) as folder:
        files = {}
        for name, data in ((CODE, memoryview(program.code)), (IMAGE, program.image.data)):
            (folder / name).write_bytes(data)
            files[name] = {"bytes": data.nbytes, "sha256": hashlib.sha256(data).hexdigest()}
        content = {
            "format": FORMAT,
            "version": VERSION,
            "created_by": f"edgedec {__version__}",
            "config": asdict(program.config),
            "host": _said(program.host),
            "names": list(program.names),
            **{name: getattr(program, name) for name in _COUNTS},
            "files": files,
            "sha256": "0" * 64,
        }
        text = json.dumps(content, indent=1).encode() + b"\n"
        before, _, after = text.rpartition(b"0" * 64)
        (folder / MANIFEST).write_bytes(before + manifest_hash(text, "0" * 64).encode() + after)


def load_program(path: Path) -> Program:
    """Read a folder and check every byte of it.

    Raises:
        UsageError: there is no such folder.
        BundleError: something is missing, changed or cut short; the message names the file.
        UnsupportedError: the folder has another version of the format.
    """
    manifest = path / MANIFEST
    if not manifest.is_file():
        raise UsageError(f"{path} is no compiled program: it has no {MANIFEST}")
    content = _manifest(manifest)
    code, image = (_file(path / name, content["files"].get(name)) for name in (CODE, IMAGE))
    try:
        header, instructions = unpack_program(code.tobytes())
    except BundleError as error:
        raise BundleError(f"{path / CODE}: {error}") from None
    try:
        config = AcceleratorConfig(**content["config"])
        host = _host(content["host"])
        if header.configuration != config.hash:
            raise ValueError(f"{CODE} is of another configuration")
        names = content["names"]
        if not isinstance(names, list) or len(names) != len(instructions) or not all(map(_is_name, names)):
            raise ValueError(f"there must be {len(instructions)} printable names")
        program = Program(
            config=config,
            instructions=tuple(instructions),
            names=tuple(names),
            commit=header.commit,
            image=image,
            host=host,
            **{name: _count(content, name) for name in _COUNTS},
        )
    except (TypeError, ValueError, UsageError) as error:
        raise BundleError(f"{manifest}: {error}; compile the program again") from None
    _check_ranges(path, program)
    return program


def _is_name(value: Any) -> bool:
    """Return whether ``value`` can be shown in a terminal without controlling it."""
    return isinstance(value, str) and value.isprintable()


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{reprlib.repr(text)} is no finite number")
    return number


def _manifest(file: Path) -> dict[str, Any]:
    if file.stat().st_size > _MAX_MANIFEST_BYTES:
        raise BundleError(f"{file}: larger than {_MAX_MANIFEST_BYTES} bytes; this is no compiled program")
    data = file.read_bytes()
    try:
        content = json.loads(data, parse_constant=_number, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file}: not valid JSON ({error}); compile the program again") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BundleError(f"{file}: not a compiled program of edgedec")
    version, stated = content.get("version"), content.get("sha256")
    if type(version) is not int or version != VERSION:
        raise UnsupportedError(
            f"{file}: version {reprlib.repr(version)}, this edgedec reads {VERSION}; compile the program again"
        )
    if not re.fullmatch("[0-9a-f]{64}", str(stated)) or manifest_hash(data, str(stated)) != stated:
        raise BundleError(f"{file}: its hash does not match its content; copy or compile the program again")
    if set(content) != _KEYS:
        raise BundleError(f"{file}: unknown or missing keys {reprlib.repr(sorted(set(content) ^ _KEYS))}")
    for key in ("config", "host", "files"):
        if not isinstance(content[key], dict):
            raise BundleError(f"{file}: {key} must be an object")
    return content


def _file(file: Path, entry: Any) -> NDArray[np.uint8]:
    """Return the bytes of a file, after comparing them with the manifest."""
    if not isinstance(entry, dict) or set(entry) != {"bytes", "sha256"}:
        raise BundleError(f"{file.parent / MANIFEST}: file {file.name} must have bytes and sha256")
    if not file.is_file():
        raise BundleError(f"{file}: missing; copy or compile the program again")
    size = file.stat().st_size
    if type(entry["bytes"]) is not int or entry["bytes"] != size:
        raise BundleError(f"{file}: {size} bytes, the manifest says {reprlib.repr(entry['bytes'])}; copy it again")
    content = np.fromfile(file, np.uint8)
    if hashlib.sha256(content.data).hexdigest() != entry["sha256"]:
        raise BundleError(f"{file}: its hash does not match the manifest; copy or compile the program again")
    return content


def _count(content: Mapping[str, Any], name: str) -> int:
    value = content[name]
    if type(value) is not int or not 0 < value < _COUNTS[name]:
        raise ValueError(f"{name} is {reprlib.repr(value)}")
    return value


def _said(host: HostFacts) -> dict[str, Any]:
    """Return the facts without those of later versions that the program does not need, which earlier ones do not know."""
    later = [] if host.second_frequencies else ["second_frequencies", "second_magnitude"]
    later += [] if host.logits_cap else ["logits_cap"]
    later += [] if host.taps else ["taps"]
    later += [] if host.rough else ["rough"]
    return {name: value for name, value in asdict(host).items() if name not in later}


def _host(content: dict[str, Any]) -> HostFacts:
    factors = {"magnitude": 1.0, "embedding_scale": 1.0, "second_magnitude": 1.0}  # earlier programs do not say them
    content = {**factors, "second_frequencies": [], "taps": [], "rough": None, **content}
    tables = ("inverse_frequencies", "second_frequencies")
    kinds = {
        "bundle": str,
        "embedding": str,
        "rough": dict,
        **dict.fromkeys((*tables, "taps"), list),
        **dict.fromkeys((*factors, "logits_cap"), float),
    }
    for member in fields(HostFacts):
        kind = kinds.get(member.name, int)
        if member.name in ("logits_cap", "rough") and content.get(member.name) is None:
            continue
        if type(content.get(member.name)) is not kind:
            raise ValueError(f"{member.name} is {reprlib.repr(content.get(member.name))}")
    if not content.get("logits_cap", 1.0) > 0:
        raise ValueError("logits_cap must be positive")
    for name in tables:
        if not all(type(frequency) in (int, float) for frequency in content[name]):
            raise ValueError(f"{name} are not all numbers")
    if content["hidden"] < 1 or content["vocab"] < 1 or abs(content["residual_fraction"]) > 1 << 10:
        raise ValueError("hidden, vocab or residual_fraction is out of range")
    taps = tuple(map(_tap, content["taps"]))
    if len({tap.name for tap in taps}) < len(taps):
        raise ValueError("two taps have one name")
    rough = None if content["rough"] is None else _rough(content["rough"])
    if rough is not None and not any(tap.name == rough.norm and tap.normed for tap in taps):
        raise ValueError(f"the rough head reads {rough.norm!r}, which is no tapped norm")
    tables_ = {name: tuple(map(float, content[name])) for name in tables}
    return HostFacts(**{**content, **tables_, "taps": taps, "rough": rough})


def _rough(content: dict[str, Any]) -> RoughFacts:
    kinds = {"head": str, "norm": str, "code_unit": float, "exponent": int, "pre_shift": int}
    if {name: type(value) for name, value in content.items()} != kinds:
        raise ValueError(f"rough is {reprlib.repr(content)}, and must have {', '.join(kinds)}")
    facts = RoughFacts(**content)
    if not facts.head.isprintable() or not facts.code_unit > 0 or abs(facts.exponent) > 1 << 10:
        raise ValueError(f"the rough head {facts.head!r} has a name, unit or exponent out of range")
    if not 0 <= facts.pre_shift < 8:
        raise ValueError(f"the rough head has pre_shift={facts.pre_shift}, which is 0 to 7")
    return facts


def _tap(content: Any) -> TapFacts:
    kinds = {"name": str, "instruction": int, "elements": int, "unit": float, "normed": bool, "selected": bool}
    if not isinstance(content, dict) or {name: type(value) for name, value in content.items()} != kinds:
        raise ValueError(f"a tap is {reprlib.repr(content)}, and must have {', '.join(kinds)}")
    tap = TapFacts(**content)
    if not tap.name.isprintable() or not tap.unit > 0 or tap.elements < 1 or tap.instruction < 0:
        raise ValueError(f"the tap {tap.name!r} has a name, unit, elements or instruction out of range")
    return tap


def _check_ranges(path: Path, program: Program) -> None:
    """Check that the image is whole beats, that no instruction has a fault, and that instructions write the taps."""
    beat_bytes = program.config.beat_bytes
    if program.image.size % beat_bytes:
        raise BundleError(f"{path / IMAGE}: {program.image.size} bytes are not whole beats of {beat_bytes}")
    try:
        fault = program.fault()
    except BundleError as error:
        raise BundleError(f"{path / CODE}: {error}") from None
    if fault is not None:
        raise BundleError(f"{path / CODE}: instruction {fault.number} {fault.reason}; compile the program again")
    lost = [tap.name for tap in program.host.taps if not program.writes(tap)]
    if lost:
        raise BundleError(f"{path / CODE}: no instruction writes the tap {lost[0]!r}; compile the program again")
