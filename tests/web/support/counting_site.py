"""A site whose model only counts: token n is followed by n plus the number in its weights. It runs on any GPU at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Any

import numpy as np

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.runtime.gpu.kernels.head import HeadLayout
from edgedec.runtime.gpu.kernels.kernel import ONE, Binding, Count, Groups, Kernel
from edgedec.runtime.gpu.program import GpuBuffer, GpuProgram, Kind, Step
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.runtime.web.probes import probes, spellings
from edgedec.runtime.web.site_writer import VARIANTS, SiteModel, write_site

ROWS, BLOCKS = 32, 16
STEP = 3  # the number in the weights
PADDING_WORDS = 10_000

_SOURCE = """
@group(0) @binding(0) var<storage, read> head: array<u32>;
@group(0) @binding(1) var<storage, read> step: array<i32>;
@group(0) @binding(2) var<storage, read_write> top_ids: array<i32>;
@compute @workgroup_size(32) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  if (at.x >= head[2]) { return; }
  let row = head[RESULT_ROWS + at.x];
  top_ids[at.x] = bitcast<i32>(head[ROW_ID + row]) + step[0];
}
"""


def counting_program() -> GpuProgram:
    """Return the program."""
    layout = HeadLayout(rows=ROWS, results=1, blocks=BLOCKS)
    constants = "".join(f"const {name} = {value}u;\n" for name, value in layout.constants().items())
    kernel = Kernel(
        name="count",
        source=constants + _SOURCE,
        bindings=(
            Binding(name="head", access="read"),
            Binding(name="step", access="read"),
            Binding(name="top_ids", access="read_write"),
        ),
        groups=Groups(x=Count(results=1, divisor=32), y=ONE, z=ONE),
    )
    buffers = [("head", 4 * layout.words, "input", "pass"), ("padding", 4 * PADDING_WORDS, "constant", "weights")]
    buffers += [("step", 4, "constant", "weights"), ("top_ids", 4, "output", "pass"), ("unused", 4, "input", "pass")]
    return GpuProgram(
        rows=ROWS,
        results=1,
        cache_blocks=BLOCKS,
        positions=16 * BLOCKS,
        vocab=4096,
        width=4,
        top_k=1,
        sum_parts=1,
        most_moves=1,
        embeds_only=False,
        layout=layout,
        buffers=tuple(
            GpuBuffer(name=name, nbytes=size, kind=_kind(kind), item=item) for name, size, kind, item in buffers
        ),
        kernels=(kernel,),
        steps=(Step(name="count", kernel=0, buffers=(0, 2, 3), when="top"),),
        head=0,
        embeds=4,
        moves=4,
        logits=4,
        top_ids=3,
        top_logits=4,
        top_sums=4,
    )


def _kind(name: str) -> Kind:
    kinds: dict[str, Kind] = {"input": "input", "constant": "constant", "output": "output"}
    return kinds[name]


def write_counting_site(folder: Path, *, step: int = STEP) -> None:
    """Write a site with the embedded model's tokenizer and template, and the counting program."""
    bundle = Bundle.open(demo.bundle_path())
    tokenizer = Tokenizer.load(bundle.tokenizer_file)
    write_site(
        folder,
        SiteModel(
            name="counting",
            bundle=bundle.sha256,
            tokens={"bos": bundle.tokens.bos, "eos": list(bundle.tokens.eos)},
            spellings=spellings(bundle, tokenizer),
            tokenizer=bundle.tokenizer_file.read_bytes(),
            chat_template=bundle.chat_template,
            probes=probes(bundle, tokenizer),
            known_answer={"prompt": [100, 200], "tokens": [200 + step, 200 + 2 * step]},
            programs=dict.fromkeys(VARIANTS, counting_program()),
            constants={
                "padding": partial(np.zeros, PADDING_WORDS, np.int32),
                "step": partial(np.full, 1, step, np.int32),
            },
        ),
    )


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, *connection: Any, sent: Mapping[str, str], **options: Any) -> None:
        self._sent = sent
        super().__init__(*connection, **options)

    def end_headers(self) -> None:
        """End the headers with those that the test asks for."""
        for name, value in self._sent.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@contextmanager
def served(folder: Path, headers: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """Serve a folder as ``python -m http.server`` does, with further headers, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder), sent=headers))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
