"""Write a site: the folder of static files with which a browser runs one program. docs/web.md describes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec import __version__
from edgedec.progress import Progress, silent
from edgedec.runtime.gpu.probe import arithmetic_cases
from edgedec.runtime.gpu.program import CONSTANT_ALIGNMENT, GpuProgram
from edgedec.runtime.web.manifest import FORMAT, SITE, VERSION
from edgedec.runtime.web.pieces import PieceWriter, SiteFile, write_file
from edgedec.runtime.web.runtime_files import write_runtime

__all__ = ["TOKENIZER", "VARIANTS", "SiteModel", "Variant", "write_site"]


TOKENIZER = "model/tokenizer.json"  # its path in a site


class Variant(NamedTuple):
    """A kind of adapter, by the members of ``ShaderOptions``; arithmetic.js chooses one by its name."""

    fused: bool
    packed_dot: bool
    compact: bool = False

    @property
    def name(self) -> str:
        """The name of its program."""
        kind = "compact" if self.compact else "native" if self.fused else "exact"
        return f"{kind}-{'packed' if self.packed_dot else 'shifts'}"


VARIANTS = tuple(
    Variant(fused=fused, packed_dot=packed, compact=compact)
    for fused, compact in ((True, False), (False, False), (False, True))
    for packed in (True, False)
)


@dataclass(frozen=True, kw_only=True)
class SiteModel:
    """The parts of a model that a site holds.

    Members:
        name: name on the page.
        bundle: SHA-256 of the bundle's manifest.
        tokens: ids of the tokens that begin and end a text, ``{"bos": id or None, "eos": [ids]}``.
        spellings: texts of these tokens for the chat template.
        tokenizer: content of ``tokenizer.json``.
        chat_template: the template; None if there is none.
        probes, known_answer: results of the functions of ``probes.py`` of these names.
        programs: the program of each of ``VARIANTS``. Their buffers are the same.
        constants: makers of the contents of the constants, by the names of their buffers.
    """

    name: str
    bundle: str
    tokens: Mapping[str, Any]
    spellings: Mapping[str, str]
    tokenizer: bytes
    chat_template: str | None
    probes: Mapping[str, Any]
    known_answer: Mapping[str, Any] | None
    programs: Mapping[Variant, GpuProgram]
    constants: Mapping[str, Callable[[], NDArray[Any]]]


def write_site(folder: Path, model: SiteModel, progress: Progress = silent) -> list[SiteFile]:
    """Write all files of a site to an empty folder and return the pieces of the weights."""
    write_runtime(folder)
    any_program = next(iter(model.programs.values()))
    weights = _write_weights(folder, any_program, model.constants, progress)
    programs = {
        variant.name: write_file(folder, f"model/program-{variant.name}.json", _json(program.as_json()))
        for variant, program in model.programs.items()
    }
    template = model.chat_template
    site = {
        "format": FORMAT,
        "version": VERSION,
        "created_by": f"edgedec {__version__}",
        "model": model.name,
        "bundle": model.bundle,
        "positions": any_program.positions,
        "tokens": model.tokens,
        "spellings": model.spellings,
        "memory": {"items": any_program.item_bytes(), "limits": _limits(any_program)},
        "tokenizer": write_file(folder, TOKENIZER, model.tokenizer).as_json(),
        "chat_template": template
        if template is None
        else write_file(folder, "model/chat_template.jinja", template.encode()).as_json(),
        "arithmetic": write_file(folder, "model/arithmetic.json", _json(_arithmetic())).as_json(),
        "programs": {name: file.as_json() for name, file in programs.items()},
        "weights": [file.as_json() for file in weights],
        "probes": model.probes,
        "known_answer": model.known_answer,
    }
    write_file(folder, SITE, _json(site))
    return weights


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _write_weights(
    folder: Path, program: GpuProgram, constants: Mapping[str, Callable[[], NDArray[Any]]], progress: Progress
) -> list[SiteFile]:
    """Write the constants in the order of the program, each at the offset that the program says."""
    offsets = program.constant_offsets()
    with PieceWriter(folder, "model/weights") as writer:
        for done, (index, offset) in enumerate(offsets.items()):
            progress("weights", done, len(offsets))
            assert writer.written == offset
            buffer = program.buffers[index]
            data = np.ascontiguousarray(constants[buffer.name]())
            assert data.nbytes == buffer.nbytes, buffer.name
            writer.write(data)
            writer.write(np.zeros(-data.nbytes % CONSTANT_ALIGNMENT, np.uint8))
        progress("weights", len(offsets), len(offsets))
    return writer.files


def _limits(program: GpuProgram) -> dict[str, int]:
    """Return the limits of WebGPU that a program needs, under WebGPU's names."""
    largest = max(buffer.nbytes for buffer in program.buffers)
    return {
        "maxBufferSize": largest,
        "maxStorageBufferBindingSize": largest,
        "maxStorageBuffersPerShaderStage": max(len(kernel.bindings) for kernel in program.kernels),
    }


def _arithmetic() -> dict[str, Any]:
    """Return the cases by which a browser chooses the program, with floats as their bits."""
    cases = arithmetic_cases()
    return {
        "source": cases.kernel.source,
        "buffers": [array.view(np.uint32).reshape(-1).tolist() for array in cases.arrays],
        "groups": cases.kernel.groups.of(1, 1)[0],
        "results": cases.results.view(np.uint32).reshape(-1).tolist(),
        "normal": cases.normal,
    }
