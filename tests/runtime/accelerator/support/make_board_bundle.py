"""Make a board bundle of a tiny model, with a bitstream that no board could load."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.families import build_graph
from edgedec.graph.passes import assign_schemes, fuse_linears, quantize_activations
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.handoff.write import write_hwh
from edgedec.runtime.accelerator.board_bundle import write_board_bundle
from tests.edgedec.reference.integer_profile.support.make_models import prepared, roughened
from tests.support import make_tiny

BOARD = "kv260"
RTLIL_HASH = 0x0123_4567_89AB_CDEF
BITSTREAM = b"no bitstream at all" * 1000


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Hold everything that a board bundle is made of."""

    bundle: Bundle
    program: Program
    bitstream: Path
    hwh: Path

    def write(self, path: Path, board: str = BOARD) -> Path:
        write_board_bundle(
            path,
            bundle=self.bundle,
            program=self.program,
            bitstream=self.bitstream,
            hwh=self.hwh,
            rtlil_hash=RTLIL_HASH,
            board=board,
        )
        return path


def tokenizer(ids: int) -> str:
    """Return a tokenizer of that many words: w0, w1, and so on."""
    model = {"type": "WordLevel", "vocab": {f"w{number}": number for number in range(ids)}, "unk_token": "w0"}
    return json.dumps({"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model})


def write_source(path: Path, kind: str, *, seed: int, ids: int, template: str | None, tied: bool = False) -> Bundle:
    """Write a tiny bundle with a tokenizer that works; the model has 41 rows."""
    make_tiny.write_bundle(path.with_name("tiny"), kind, seed=seed, changes={"tie_word_embeddings": tied})
    tiny = Bundle.open(path.with_name("tiny"))
    with BundleWriter.create(path) as writer:
        for name, tensor in tiny.tensors.items():
            parts = {part: tiny.array(name, part) for part in tensor.scheme.parts(tensor.shape)}
            writer.add(name, tensor.scheme, tensor.shape, parts)
        writer.finish(
            config=tiny.config,
            quantization=tiny.quantization,
            tokens=tiny.tokens,
            tokenizer_json=tokenizer(ids),
            chat_template=template,
        )
    return Bundle.open(path)


def make(
    folder: Path,
    *,
    kind: str = "native",
    seed: int = 0,
    ids: int = 40,
    template: str | None = "{{ messages }}",
    rough: bool = False,
    tied: bool = False,
    sequences: int = 1,
) -> Parts:
    """Make bundle, program and the files of a board's build, in an empty folder."""
    bundle = write_source(folder / "source", kind, seed=seed, ids=ids, template=template, tied=tied)
    graph = fuse_linears(quantize_activations(assign_schemes(build_graph(bundle.config), bundle.schemes)))
    weights = {name: bundle.weight(name) for name in graph.weights}
    model = prepared(graph, weights)
    model = roughened(weights, model, 16) if rough else model
    program = compile_model(model, config_for(model, context=64, slots=2, sequences=sequences), bundle=bundle.sha256)
    (folder / "top.bit").write_bytes(BITSTREAM)
    write_hwh(program.config, folder / "top.hwh", family="zynq-ultrascale+", rtlil_hash=RTLIL_HASH)
    return Parts(bundle=bundle, program=program, bitstream=folder / "top.bit", hwh=folder / "top.hwh")
