"""The board bundle: a folder with everything that a board needs to run one model. docs/building.md defines it.

``write_board_bundle`` writes one and ``open_board_bundle`` opens it. Before anything is loaded, opening checks every byte,
and that bitstream, program and model belong together. This module runs on boards: it needs NumPy, but not Amaranth.
"""

from __future__ import annotations

import json
import reprlib
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgedec import __version__
from edgedec.bundle.atomic import new_folder
from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.bundle.file_kinds import refusal
from edgedec.bundle.manifest import MANIFEST as MODEL_MANIFEST
from edgedec.bundle.missing import nothing_at
from edgedec.errors import BundleError, UsageError
from edgedec.hw.compiler import program_file
from edgedec.hw.compiler.program import Program
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.handoff.read import Handoff, check_handoff, read_handoff
from edgedec.hw.isa.instructions import ISA_VERSION
from edgedec.runtime.accelerator.board_manifest import (
    AGAIN,
    BITSTREAMS,
    HWH,
    KNOWN_ANSWER,
    MANIFEST,
    MODEL,
    PROGRAM,
    checked_files,
    encode_manifest,
    is_board_name,
    listed_files,
    read_json,
    read_manifest,
)
from edgedec.runtime.accelerator.self_test import known_answer
from edgedec.runtime.accelerator.weights import head_weight
from edgedec.runtime.driver.known_answer import KnownAnswer
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.schemes import EmbeddingWeight, Int8Scheme, Int8Weight

__all__ = ["BOARD_BUNDLE", "BoardBundle", "open_board_bundle", "write_board_bundle"]

BOARD_BUNDLE = "accelerator.board"  # name of the board bundle in the folder of its build
_BUILD, _REPORT = "build.json", "report.json"  # files of the folder that edgedec build-bitstream writes
_PROGRAM_MANIFEST = f"{PROGRAM}/{program_file.MANIFEST}"
_MAX_ANSWER_BYTES = 1 << 20  # maximum size of known_answer.json
_MAX_PROGRAM_BYTES = 32 << 20  # maximum size of a program's manifest, which names up to 65,536 instructions


@dataclass(frozen=True, kw_only=True)
class BoardBundle:
    """An opened, verified board bundle.

    Members:
        path: the folder.
        board: value of --board.
        config: configuration of the accelerator in the bitstream.
        rtlil_hash: hash of the RTLIL that the bitstream was built from; 0 if it is not known.
        bitstream, hwh: files in one folder with the same stem, as PYNQ requires.
        model: tokenizer, template, configuration and embedding of the model, and the int8 head where the program has a
            rough one; it has no other weights.
        known_answer: hashes of the program's results for fixed tokens.
        bundle: SHA-256 of the bundle from which the program was compiled.
        files: SHA-256 of each file except ``MANIFEST``, by its name in the folder.
        sha256: SHA-256 of the whole, as board.json states it.
    """

    path: Path
    board: str
    config: AcceleratorConfig
    rtlil_hash: int
    bitstream: Path
    hwh: Path
    model: Bundle
    known_answer: KnownAnswer
    bundle: str
    files: Mapping[str, str]
    sha256: str

    def program(self) -> Program:
        """Read the compiled program. It is not kept, because its image is as large as the weights.

        Raises:
            BundleError: a file has changed since the bundle was opened.
        """
        return program_file.load_program(self.path / PROGRAM)

    @property
    def embedding(self) -> EmbeddingWeight:
        """The embedding table, whose rows are the input of passes; its arrays are views of the mapped file."""
        name, *_ = self.model.tensors
        return _embedding(self.model, name)

    @property
    def head(self) -> Int8Weight | None:
        """The int8 head whose rows score tokens again, as views of the mapped file; None unless there is a rough head."""
        *_, name = self.model.tensors
        return head_weight(self.model, name) if self.config.rough_head else None


def _embedding(model: Bundle, name: str) -> EmbeddingWeight:
    weight = model.weight(name)
    assert isinstance(weight, EmbeddingWeight), "``_check_model`` was called"
    return weight


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """The statements of a program about its accelerator and its model."""

    configuration: int
    bundle: str
    embedding: str
    vocab: int
    hidden: int
    head: str  # name of the int8 head of a rough one; empty without one

    @property
    def weights(self) -> list[str]:
        """Names of the weights of the host."""
        return list(dict.fromkeys(name for name in (self.embedding, self.head) if name))

    @classmethod
    def of(cls, program: Program) -> _Facts:
        host = program.host
        return cls(
            configuration=program.config.hash,
            bundle=host.bundle,
            embedding=host.embedding,
            vocab=host.vocab,
            hidden=host.hidden,
            head=host.rough.head if host.rough else "",
        )


def write_board_bundle(
    path: Path, *, bundle: Bundle, program: Program, bitstream: Path, hwh: Path, rtlil_hash: int, board: str
) -> None:
    """Write a board bundle to ``path``, or replace the one there.

    Args:
        path: the folder.
        bundle: the model from which the program was compiled; only the weights of the host are copied.
        program: the compiled program.
        bitstream, hwh: a .bit or .bin file, and the .hwh file of the same build.
        rtlil_hash: hash of the RTLIL of that build, as build.json has it.
        board: value of --board.

    Raises:
        UsageError: a file does not exist or is empty, ``board`` is not a valid name, or ``path`` has other contents.
        BundleError: bitstream, program and bundle do not belong together.
        EdgedecError: the folder cannot be written; nothing is left of it then.
    """
    if not is_board_name(board):
        raise UsageError(f"a board's name has lower-case letters, digits, '.', '_' and '-', not {board!r}")
    if bitstream.suffix not in (".bit", ".bin"):
        raise UsageError(
            f"{bitstream}: a bitstream is a .bit or a .bin file; give the file that the board's build made"
        )
    for file in (bitstream, hwh):
        if not file.is_file() or not file.stat().st_size:
            raise UsageError(f"{file}: no such file, or an empty one; build the accelerator for {board} first")
    facts = _Facts.of(program)
    if facts.bundle != bundle.sha256:
        raise BundleError(
            f"the program was compiled from the bundle {facts.bundle[:16] or 'of no name'}, {bundle.path} is "
            f"{bundle.sha256[:16]}; compile this bundle for the accelerator"
        )
    handoff = read_handoff(hwh)
    check_handoff(handoff, program.config)
    _check_rtlil(handoff, rtlil_hash, "build.json")
    _check_model(bundle, facts)
    with new_folder(path, MANIFEST) as folder:
        program_file.save_program(program, folder / PROGRAM)
        _write_model(folder / MODEL, bundle, facts.weights)
        shutil.copyfile(bitstream, folder / f"accelerator{bitstream.suffix}")
        shutil.copyfile(hwh, folder / HWH)
        head = head_weight(bundle, facts.head) if facts.head else None
        answer = known_answer(program, _embedding(bundle, facts.embedding), head)
        (folder / KNOWN_ANSWER).write_text(json.dumps(answer.as_json(), indent=1) + "\n", "utf-8")
        content = {
            "created_by": f"edgedec {__version__}",
            "board": board,
            "config": asdict(program.config),
            "configuration": f"{program.config.hash:016x}",
            "isa_version": ISA_VERSION,
            "rtlil_hash": f"{rtlil_hash:016x}",
            "bundle": bundle.sha256,
            "files": listed_files(folder),
        }
        (folder / MANIFEST).write_bytes(encode_manifest(content))


def _write_model(path: Path, bundle: Bundle, names: list[str]) -> None:
    with BundleWriter.create(path) as writer:
        for name in names:
            tensor = bundle.tensors[name]
            parts = {part: bundle.array(name, part) for part in tensor.scheme.parts(tensor.shape)}
            writer.add(name, tensor.scheme, tensor.shape, parts)
        writer.finish(
            config=bundle.config,
            quantization={
                "method": bundle.quantization.get("method", "unknown"),
                "board_bundle": True,  # with this, Bundle explains why the other weights are missing
                "bundle": bundle.sha256,
            },
            tokens=bundle.tokens,
            tokenizer_json=bundle.tokenizer_file.read_text("utf-8"),
            chat_template=bundle.chat_template,
            tokenizer_identity=bundle.tokenizer_hash,
        )


def _not_built(folder: Path) -> str:
    """Return the message about the folder of a build in the place of its board bundle, with the step that is missing."""
    inside = folder / BOARD_BUNDLE
    if (inside / MANIFEST).is_file():
        return f"{folder}: is the folder of a build, and its board bundle is in it; name {inside}"
    try:
        report = json.loads((folder / _REPORT).read_bytes())
        state, command = str(report["state"]), str(report["command"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        state, command = "", ""
    if state == "built":
        return (
            f"{folder}: is the folder of a build that has a bitstream and no board bundle: its timing is not met, or its "
            "board is loaded with --load and takes none; run the same edgedec build-bitstream again, which says which"
        )
    tools = f" with: {command.replace('cd .', f'cd {shlex.quote(str(folder))}', 1)}" if command else ""
    return (
        f"{folder}: is the folder of a build that has no bitstream yet, so that there is nothing to deploy. First run its "
        f"maker's tools, here or on a machine that has them{tools}. Then run the same edgedec build-bitstream again, which "
        f"writes {inside}"
    )


def open_board_bundle(path: Path) -> BoardBundle:
    """Open and verify a board bundle. Its program stays on disk.

    Raises:
        UsageError: ``path`` does not exist.
        BundleError: ``path`` is not a board bundle, or is damaged, or its parts do not belong together; the message names
            the file.
        UnsupportedError: the bundle has another version of the format.
    """
    manifest = path / MANIFEST
    if not path.exists():
        if path.name == BOARD_BUNDLE and (path.parent / _BUILD).is_file():
            raise BundleError(_not_built(path.parent))
        raise UsageError(nothing_at(path, "board bundle"))
    if not manifest.is_file():
        if (path / MODEL_MANIFEST).is_file():
            raise BundleError(
                f"{path}: is a model's bundle, not a board bundle; build one for a board with: edgedec build-bitstream -m "
                "BUNDLE --board NAME -o FOLDER"
            )
        if (path / _BUILD).is_file():
            raise BundleError(_not_built(path))
        raise BundleError(f"{refusal(path, 'board bundle')} (it has no {MANIFEST})")
    try:
        content = read_manifest(manifest)
        files = dict(checked_files(path, content["files"]))
        facts = _read_facts(path / _PROGRAM_MANIFEST)
    except OSError as error:
        raise BundleError(f"{error.filename or path}: cannot be read: {error.strerror}; {AGAIN}") from error
    config = _read_config(manifest, content)
    _check_program(path / _PROGRAM_MANIFEST, facts, config, content["bundle"])
    handoff, rtlil_hash = read_handoff(path / HWH), int(content["rtlil_hash"], 16)
    check_handoff(handoff, config)
    _check_rtlil(handoff, rtlil_hash, MANIFEST)
    model = Bundle.open(path / MODEL)
    if model.quantization.get("bundle") != content["bundle"] or list(model.tensors) != facts.weights:
        raise BundleError(
            f"{path / MODEL / MODEL_MANIFEST}: is not the model of bundle {content['bundle'][:16]} with "
            f"{' and '.join(map(reprlib.repr, facts.weights))} alone; make the board bundle again"
        )
    _check_model(model, facts)
    return BoardBundle(
        path=path,
        board=content["board"],
        config=config,
        rtlil_hash=rtlil_hash,
        bitstream=path / next(name for name in BITSTREAMS if name in files),
        hwh=path / HWH,
        model=model,
        known_answer=_read_answer(path / KNOWN_ANSWER),
        bundle=content["bundle"],
        files=files,
        sha256=content["sha256"],
    )


def _read_answer(file: Path) -> KnownAnswer:
    try:
        return KnownAnswer.of_json(read_json(file, _MAX_ANSWER_BYTES))
    except BundleError as error:
        raise error if str(file) in str(error) else BundleError(f"{file}: {error}; {AGAIN}") from None


def _check_rtlil(handoff: Handoff, rtlil_hash: int, file: str) -> None:
    """Check that a hand-off file is of the RTLIL that ``file`` names."""
    if handoff.rtlil_hash != rtlil_hash:
        raise BundleError(
            f"{handoff.path}: its RTLIL_HASH is {handoff.rtlil_hash:016x}, rtlil_hash of {file} is {rtlil_hash:016x}: they "
            "are of two builds; copy all files again, from one"
        )


def _read_config(file: Path, content: Mapping[str, Any]) -> AcceleratorConfig:
    if content["isa_version"] != ISA_VERSION:
        raise BundleError(
            f"{file}: isa_version is {content['isa_version']}, this edgedec's instruction set is {ISA_VERSION}; build the "
            "bitstream again with this edgedec, or install the one that built it"
        )
    try:
        config = AcceleratorConfig(**content["config"])
    except (TypeError, UsageError) as error:
        raise BundleError(f"{file}: config: {error}; make the board bundle again with this edgedec") from None
    if f"{config.hash:016x}" != content["configuration"]:
        raise BundleError(
            f"{file}: its config is {config.hash:016x}, not {reprlib.repr(content['configuration'])}; make the board "
            "bundle again with this edgedec"
        )
    return config


def _read_facts(file: Path) -> _Facts:
    """Read the facts from a program's manifest. ``load_program`` checks the whole manifest."""
    content = read_json(file, _MAX_PROGRAM_BYTES)
    try:
        host = content["host"]
        facts = _Facts(
            configuration=AcceleratorConfig(**content["config"]).hash,
            **{name: host[name] for name in ("bundle", "embedding", "vocab", "hidden")},
            head=host["rough"]["head"] if "rough" in host else "",
        )
    except (KeyError, TypeError, UsageError) as error:
        raise BundleError(f"{file}: {error}; compile the program again") from None
    for name, kind in (("bundle", str), ("embedding", str), ("vocab", int), ("hidden", int), ("head", str)):
        if type(getattr(facts, name)) is not kind:
            raise BundleError(f"{file}: {name} is {reprlib.repr(getattr(facts, name))}; compile the program again")
    return facts


def _check_program(file: Path, facts: _Facts, config: AcceleratorConfig, bundle: str) -> None:
    if facts.configuration != config.hash:
        raise BundleError(
            f"{file}: the program is for an accelerator of configuration {facts.configuration:016x}, {MANIFEST} says "
            f"{config.hash:016x}; compile the model for this accelerator"
        )
    if facts.bundle != bundle:
        raise BundleError(
            f"{file}: the program was compiled from the bundle {reprlib.repr(facts.bundle[:16])}, {MANIFEST} says "
            f"{bundle[:16]}; compile that bundle"
        )


def _check_model(model: Bundle, facts: _Facts) -> None:
    """Check that the model's embedding is the one that the program expects, and that every id has a row."""
    weight = model.weight(facts.embedding)
    shape, kind = model.tensors[facts.embedding].shape, model.tensors[facts.embedding].scheme.kind
    if not isinstance(weight, EmbeddingWeight) or shape != (facts.vocab, facts.hidden):
        raise BundleError(
            f"{model.weights_file}: {facts.embedding} is {kind} {shape}, the program's is "
            f"{(facts.vocab, facts.hidden)}; compile this bundle"
        )
    if facts.head:
        rows, scheme = model.tensors[facts.head].shape, model.tensors[facts.head].scheme
        if not isinstance(scheme, Int8Scheme) or rows != shape:
            raise BundleError(
                f"{model.weights_file}: {facts.head} is {scheme.kind} {rows}, the program's head is int8 {shape}; compile "
                "this bundle"
            )
    ids = Tokenizer.load(model.tokenizer_file).size
    if ids > facts.vocab:
        raise BundleError(
            f"{model.tokenizer_file}: has {ids} ids, the program {facts.vocab} rows; use the tokenizer that the model was "
            "trained with"
        )
