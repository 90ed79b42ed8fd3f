"""Measure how often a ternary head, whose likeliest tokens are scored again in int8, chooses the token of the int8 head.

    .venv/bin/python -m benchmarks.quality.ternary_head [BUNDLE ...] [--text FILE] [--tokens 4080] [--json]
    .venv/bin/python -m benchmarks.quality.ternary_head --write-docs

The int8 head of each bundle is rounded to trits in several forms. Both heads multiply the same int8 codes of the final norm,
in the integers of the integer profile, over a text that is read teacher-forced in windows. The first k tokens by the ternary
head are candidates; a rescoring with the int8 rows chooses the int8 head's best token exactly if it is among them, so that
its place in the ternary order says it for every k. Forms "fitted" see the second moments of the codes over the
``--calibration`` tokens of the text that follow the measured ones. No clock decides, so the figures of two runs are equal.

JSON: {BUNDLE: {"vocab", "width", "tokens", "largest_moment", "forms": {FORM: {"top_1": {K: SHARE}, "top_8": {K: SHARE}}}}}.
"top_8" is the share of positions at which the int8 head's best 8 are all candidates, for a sampler with top-k up to 8.
"largest_moment" is the share of the fitted codes' energy that lies in the one direction which has most of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.docs_tables import markdown_table, write_blocks
from benchmarks.support.shapes import BITNET_073B, BITNET_2B4T
from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.errors import EdgedecError, UsageError
from edgedec.graph.ops import Linear
from edgedec.hw.compiler.ternary_image import TernaryLayout
from edgedec.quantize.methods.planes import Statistics, quantize_planes, quantize_tied
from edgedec.quantize.methods.rough import quantize_rows
from edgedec.reference.integer_profile.cache import IntegerCache
from edgedec.reference.integer_profile.calibrate import calibrate
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.head import top
from edgedec.reference.integer_profile.model import prepare
from edgedec.reference.integer_profile.numbers import I64
from edgedec.reference.integer_profile.ops import linear
from edgedec.reference.integer_profile.rough_head import head_codes, head_of
from edgedec.reference.integer_profile.site import Site
from edgedec.reference.integer_profile.values import Logits, Scale
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.schemes import Int8Weight, TernaryWeight
from edgedec.schemes.ternary import fold

__all__ = ["CANDIDATES", "FORMS", "Head", "HeadForm", "bytes_of_token", "compare", "measure", "places", "rounded"]

I32 = NDArray[np.int32]
F32 = NDArray[np.float32]

CANDIDATES = (1, 8, 16, 32, 64, 128, 256, 512)
BEST = 8  # likeliest tokens that a sampler may need
GROUP = 64  # columns of a beat, and the smallest group that the accelerator takes
WINDOW, TOKENS = 255, 4080
_MODELS = ("demo", "demo-hybrid", "demo-draft")
_SHAPES = MappingProxyType({"0.73B": BITNET_073B, "2B4T": BITNET_2B4T})
_TYPICAL = 64  # candidates of the table of bytes
_ROWS_AT_ONCE = 256
_SCALE_BYTES = 2  # mantissa of a row, u16
_TILE_WORDS = 64  # words of five rows in a tile, which only the padding of the last one depends on


@dataclass(frozen=True, kw_only=True)
class HeadForm:
    """A way to make a ternary head.

    Members:
        planes: planes of trits.
        grouped: True for a scale for each ``GROUP`` columns of a row, False for one for each row; two planes of a row are
            tied 3:1.
        fitted: weigh the errors by the second moments of the codes, instead of all alike.
        absmean: take the mean magnitude as the scale, instead of that of least squares.
        blocks: round columns in blocks with scales that are known, as the accelerator's rough head, which is faster.
    """

    planes: int = 1
    grouped: bool = False
    fitted: bool = False
    absmean: bool = False
    blocks: bool = False


FORMS: Mapping[str, HeadForm] = MappingProxyType(
    {
        "1 plane, absmean of rows": HeadForm(absmean=True),
        "1 plane, rows": HeadForm(),
        "1 plane, groups": HeadForm(grouped=True),
        "1 plane, rows, fitted": HeadForm(fitted=True),
        "1 plane, rows, fitted in blocks": HeadForm(fitted=True, blocks=True),
        "2 planes tied, rows": HeadForm(planes=2),
        "2 planes, groups": HeadForm(planes=2, grouped=True),
        "2 planes tied, rows, fitted": HeadForm(planes=2, fitted=True),
        "2 planes tied, rows, fitted in blocks": HeadForm(planes=2, fitted=True, blocks=True),
    }
)


def rounded(weight: F32, form: HeadForm, moments: NDArray[np.float64]) -> Int8Weight | TernaryWeight:
    """Return a head [vocab, width] in trits. With scales of rows it is a matrix of small codes, as int8 is.

    ``moments`` float64 [width, width] is the sum of the products of the inputs' columns, which only fitted forms read.
    """
    if form.absmean:
        scale = np.abs(weight).mean(axis=1)
        trits = np.rint(weight / np.where(scale > 0, scale, 1)[:, None]).clip(-1, 1).astype(np.int8)
        return Int8Weight(codes=trits, scale=scale)
    if form.blocks:
        codes, scale = quantize_rows(weight, (3**form.planes - 1) // 2, Statistics(gram=moments))
        return Int8Weight(codes=codes, scale=scale)
    statistics = Statistics(gram=moments) if form.fitted else None
    if form.grouped:
        trits, scales = quantize_planes(weight, form.planes, GROUP, statistics)
        return TernaryWeight(trits=trits, scale=scales, group_size=GROUP)
    method = quantize_planes if form.planes == 1 else quantize_tied
    trits, scales = method(weight, form.planes, weight.shape[1], statistics)
    return Int8Weight(codes=fold(trits), scale=scales[0, :, 0])


def places(chosen: I32, rough: I64) -> I64:
    """Return the places, from 0, of ids [n, m] in the order of the logits ``rough`` [n, vocab], as ``top`` orders them."""
    result, ids = np.empty(chosen.shape, np.int64), np.arange(rough.shape[1])
    for column, mine in enumerate(chosen.T[:, :, None]):
        own = np.take_along_axis(rough, mine, axis=1)
        result[:, column] = (rough > own).sum(axis=1) + ((rough == own) & (ids < mine)).sum(axis=1)
    return result


@dataclass(frozen=True, kw_only=True)
class Head:
    """The place of a head in the integer profile: ``operation`` in the graph of ``site``."""

    operation: Linear
    site: Site

    def logits(self, weight: Int8Weight | TernaryWeight, codes: I64) -> Iterator[Logits]:
        """Yield the logits of some rows of codes s8 [n, width] after the other, as the profile defines them for a matrix."""
        constants = linear.prepare(self.operation, replace(self.site, weights=lambda name: weight))
        nothing = np.zeros(0, np.int32)
        context = IntegerPassContext(
            cache=IntegerCache({}), visible=np.zeros((0, 0), np.bool_), positions=nothing, embeds=None
        )
        for start in range(0, len(codes), _ROWS_AT_ONCE):
            some = codes[start : start + _ROWS_AT_ONCE]
            # The scale of a row is common to its logits.
            scale = Scale(mantissa=np.full(len(some), 1 << 15), exponent=np.zeros(len(some), np.int64))
            (logits,) = linear.run(self.operation, constants, [some, scale], context)
            assert isinstance(logits, Logits)
            yield logits


def head_and_codes(bundle: Bundle, windows: Sequence[I32]) -> tuple[Head, Int8Weight, I64]:
    """Return the head of a model, its rows without padding, and its codes s8 [n, width] of all ids of the windows.

    Each window is read from position 0.

    Raises:
        UnsupportedError: the head is not int8.
    """
    calibration = calibrate(bundle)
    model = prepare(bundle, calibration)
    op = head_of(model.graph)
    weight = bundle.weight(op.weights[0])
    assert isinstance(weight, Int8Weight), "``head_of`` was called"
    site = Site(graph=model.graph, weights=bundle.weight, calibration=calibration, forms=dict(model.forms))
    size = bundle.tokens.size
    rows = Int8Weight(codes=weight.codes[:size], scale=weight.scale[:size])
    return Head(operation=op, site=site), rows, head_codes(model, windows)


def compare(head: Head, weight: Int8Weight, codes: I64, moments: NDArray[np.float64]) -> dict[str, Any]:
    """Return "forms" of the JSON, for codes s8 [n, width] and the int8 head ``weight``."""
    best, result = [top(logits, BEST) for logits in head.logits(weight, codes)], {}
    for name, form in FORMS.items():
        rough = head.logits(rounded(weight.dense(), form, moments), codes)
        place = np.concatenate([places(ids, logits.values) for ids, logits in zip(best, rough, strict=True)])
        first, last = place[:, 0], place.max(axis=1)
        result[name] = {
            "top_1": {k: float((first < k).mean()) for k in CANDIDATES},
            "top_8": {k: float((last < k).mean()) for k in CANDIDATES},
        }
    return result


def measure(bundle: Bundle, text: str, tokens: int, calibration: int) -> dict[str, Any]:
    """Return the entry of a bundle in the JSON: ``tokens`` of the text are measured, the next ``calibration`` fitted to.

    Raises:
        UsageError: the text is too short.
        UnsupportedError: the head is not int8.
    """
    ids = Tokenizer.load(bundle.tokenizer_file).encode(text)
    first = [] if bundle.tokens.bos is None else [bundle.tokens.bos]
    body = ids[1:] if ids[:1] == first else ids
    windows = list[I32]()
    for start, end in ((0, tokens), (tokens, tokens + calibration)):
        if len(body) < end:
            raise UsageError(
                f"the text has {len(body)} tokens, and {end} are needed; take a longer --text, or lower --tokens"
            )
        for at in range(start, end, WINDOW):
            windows.append(np.array([*first, *body[at : min(at + WINDOW, end) - len(first)]], np.int32))
    head, weight, codes = head_and_codes(bundle, windows)
    fitted = codes[tokens:].astype(np.float64)
    moments = fitted.T @ fitted
    return {
        "vocab": len(weight.codes),
        "width": weight.codes.shape[1],
        "tokens": tokens,
        "largest_moment": float(np.linalg.eigvalsh(moments)[-1] / np.trace(moments)),
        "forms": compare(head, weight, codes[:tokens], moments),
    }


def bytes_of_token(form: HeadForm | None, vocab: int, width: int, candidates: int = 0) -> int:
    """Return the bytes that a token reads of a ternary head and of ``candidates`` int8 rows; None is the int8 head.

    Trits and mantissas of groups are laid out as the accelerator reads them. The int8 rows must follow one after the other.
    """
    row = width + _SCALE_BYTES
    if form is None:
        return vocab * row
    layout = TernaryLayout(
        beat_bytes=GROUP,
        tile_words=_TILE_WORDS,
        planes=form.planes,
        rows=vocab,
        columns=width,
        group_size=GROUP if form.grouped else 0,
    )
    return layout.beats * GROUP + (0 if form.grouped else vocab * _SCALE_BYTES) + candidates * row


def shares_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of the shares in percent by model, form and k: of the best token, and after a slash of the best 8."""
    rows = []
    for name, entry in results.items():
        model = f"`{name}`, {entry['vocab']:,} x {entry['width']}"
        for form, shares in entry["forms"].items():
            cells = []
            for k in CANDIDATES:
                best_8 = f" / {100 * shares['top_8'][k]:.1f}" if k >= BEST else ""
                cells.append(f"{100 * shares['top_1'][k]:.2f}{best_8}")
            rows.append((model, form, *cells))
    return markdown_table(("head", "form", *(f"k = {k}" for k in CANDIDATES)), rows)


def bytes_table() -> str:
    """Return the table of the megabytes that a token reads of a head, among them ``_TYPICAL`` int8 rows of a ternary one."""
    sizes = {name: (shape["vocab_size"], shape["hidden_size"]) for name, shape in _SHAPES.items()}
    header = ("form", *(f"{name}, {vocab:,} x {width:,}" for name, (vocab, width) in sizes.items()))
    plain = {name: form for name, form in FORMS.items() if not (form.fitted or form.absmean)}
    rows = [
        (name, *(f"{bytes_of_token(form, *size, _TYPICAL) / 1e6:.1f}" for size in sizes.values()))
        for name, form in {"int8": None, **plain}.items()
    ]
    return markdown_table(header, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="*", type=Path, metavar="BUNDLE", help="default: the embedded models")
    parser.add_argument(
        "--text", type=Path, default=demo.HELD_OUT, help="default: the embedded models' held-out stories"
    )
    parser.add_argument("--tokens", type=int, default=TOKENS, metavar="N", help="tokens that are measured")
    parser.add_argument("--calibration", type=int, default=TOKENS, metavar="N", help="tokens that are fitted to")
    parser.add_argument(
        "--write-docs", action="store_true", help="write the tables of the embedded models into the page"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.write_docs and args.bundles:
        parser.error("--write-docs writes the tables of the embedded models; leave out BUNDLE")
    try:
        paths = {str(path): path for path in args.bundles} or {name: demo.bundle_path(name) for name in _MODELS}
        text = args.text.read_text("utf-8")
        sizes = (args.tokens, args.calibration)
        results = {name: measure(Bundle.open(path), text, *sizes) for name, path in paths.items()}
    except EdgedecError as error:
        sys.stderr.write(f"edgedec: {error}\n")
        return error.exit_code
    tables = {"ternary-head shares": shares_table(results), "ternary-head bytes": bytes_table()}
    if args.write_docs:
        write_blocks(tables)
    print(json.dumps(results, indent=2) if args.json else "\n\n".join(tables.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
