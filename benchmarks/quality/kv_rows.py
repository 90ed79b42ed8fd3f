"""Measure what keys and values of fewer bits cost in the integer profile, teacher-forced, beside the profile's own 8 bits.

    .venv/bin/python -m benchmarks.quality.kv_rows                # the embedded models on their held-out stories
    .venv/bin/python -m benchmarks.quality.kv_rows --write-docs   # write the table into docs/
    .venv/bin/python -m benchmarks.quality.kv_rows -m BUNDLE --text FILE --forms "4, groups of 32" --json

The profile's definition stays as it is: a cache takes the integers of keys and values before the profile makes int8 codes
of them, codes them in another form (``row_codings.py``), and keeps what a reader would multiply, in units of the int8 codes
and not rounded to them. A row is coded when it enters the cache, so its own query sees it coded. What the int8 codes clamp
is clamped before. Turned keys times turned queries are keys times queries, so that coded rows are turned back instead.

The paragraphs of a text are its documents, which are read one after another in windows of at least --tokens. A ratio is that
of perplexities; its standard error is that of a paired bootstrap over the documents.

JSON: {"bytes": {FORM: bytes of a position of 0.73B}, "models": {NAME: {"tokens", "documents", "perplexity",
"forms": {FORM: {"ratio", "error"}}}}}.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.quality.row_codings import FORMS, PROFILE, RowForm, bytes_of_position, coded
from benchmarks.support.docs_tables import markdown_table, write_blocks
from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.cli.console import print_json
from edgedec.graph.ops import Attention
from edgedec.reference.integer_profile import head
from edgedec.reference.integer_profile.cache import IntegerCache
from edgedec.reference.integer_profile.calibrate import calibrate
from edgedec.reference.integer_profile.model import IntegerModel, prepare
from edgedec.reference.integer_profile.numbers import I64
from edgedec.runtime.text.tokenizer import Tokenizer

__all__ = ["FormCache", "Window", "measure", "ratio_and_error", "table", "windows_of"]

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]

MODELS = ("demo", "demo-int8", "demo-hybrid")
TOKENS = 1024  # least tokens of a window, but the last
_SAMPLES = 4000  # draws of the bootstrap
_GATE = 1.005  # largest ratio with which the accelerator may keep a form
_PASS_ROWS = 64  # rows of a pass, few enough for the processor's cache; no bit depends on them


class FormCache(IntegerCache):
    """A cache whose rows are those of a form. A pass must have its ``trace``, from which it takes the integers to code."""

    def __init__(self, model: IntegerModel, form: RowForm) -> None:
        super().__init__(model.graph.states, model.graph.recurrent)
        self._form, self._integers = form, dict[str, I64]()
        attentions = [op for op in model.graph.operations if isinstance(op, Attention)]
        self._attentions = {op.state: (op.inputs[1:], model.constants[op.name]) for op in attentions}
        self._wanted = {name for op in attentions for name in op.inputs[1:]}

    def trace(self, name: str, x: I64) -> None:
        """Keep the inputs of attention."""
        if name in self._wanted:
            self._integers[name] = x

    def append(self, name: str, keys: NDArray[Any], values: NDArray[Any]) -> None:
        inputs, constants = self._attentions[name]
        k, v = (self._integers.pop(source).reshape(keys.shape) for source in inputs)
        if self._form.keys is not None:
            keys = coded(k - constants.k_middle, constants.k, self._form.keys)
        if self._form.values is not None:
            values = coded(v, constants.v, self._form.values)
        super().append(name, keys, values)


@dataclass(frozen=True, kw_only=True)
class Window:
    """The ids of some documents, int32 [n], from whose second one on all are predicted, and the end of each document."""

    ids: I32
    ends: tuple[int, ...]


def windows_of(text: str, bundle: Bundle, tokens: int) -> list[Window]:
    """Return the windows of a text: paragraphs one after another after a BOS, until there are ``tokens``."""
    tokenizer, first = Tokenizer.load(bundle.tokenizer_file), bundle.tokens.bos
    windows, parts, ends = list[Window](), list[I32](), list[int]()
    paragraphs = [part for part in text.strip().split("\n\n") if part]
    for at, paragraph in enumerate(paragraphs):
        if not parts and first is not None:
            parts.append(np.array([first], np.int32))
        parts.append(tokenizer.encode(f"{paragraph}\n\n", add_special=False))
        ends.append(sum(map(len, parts)))
        if ends[-1] >= tokens or at == len(paragraphs) - 1:
            windows.append(Window(ids=np.concatenate(parts), ends=tuple(ends)))
            parts, ends = [], []
    return windows


def _nats(model: IntegerModel, window: Window, form: RowForm | None, size: int) -> list[float]:
    """Return the negative log-likelihood of each document; ``form`` None is the profile as it is."""
    cache = IntegerCache(model.graph.states, model.graph.recurrent) if form is None else FormCache(model, form)
    trace = cache.trace if isinstance(cache, FormCache) else None
    nats = list[F64]()
    for start in range(0, len(window.ids) - 1, _PASS_ROWS):
        ids, targets = (window.ids[at : at + _PASS_ROWS] for at in (start, start + 1))
        rows = np.arange(len(targets), dtype=np.int32)
        logits = head.real(model.forward(ids[: len(targets)], cache, trace=trace))[:, :size]
        cache.commit(rows)
        logits -= logits.max(axis=1, keepdims=True)
        nats.append(np.log(np.exp(logits).sum(axis=1)) - logits[rows, targets])
    return [float(part.sum()) for part in np.split(np.concatenate(nats), np.array(window.ends[:-1]) - 1)]


def ratio_and_error(excess: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    """Return the ratio of perplexities, and its standard error by drawing documents again, always the same draws.

    Args:
        excess: nats of each document above those of the other side.
        counts: tokens of each document.
    """
    more, tokens = np.array(excess), np.array(counts)
    drawn = np.random.default_rng(0).integers(len(more), size=(_SAMPLES, len(more)))
    ratios = np.exp(more[drawn].sum(axis=1) / tokens[drawn].sum(axis=1))
    return float(np.exp(more.sum() / tokens.sum())), float(ratios.std())


def measure(bundle: Bundle, text: str, tokens: int, names: Sequence[str]) -> dict[str, Any]:
    """Return the figures of one model, as the JSON has them."""
    model, size = prepare(bundle, calibrate(bundle)), bundle.tokens.size
    windows = windows_of(text, bundle, tokens)
    counts = [int(count) for window in windows for count in np.diff([1, *window.ends])]
    own = [nats for window in windows for nats in _nats(model, window, None, size)]
    forms = {}
    for name in names:
        nats = [each for window in windows for each in _nats(model, window, FORMS[name], size)]
        ratio, error = ratio_and_error([a - b for a, b in zip(nats, own, strict=True)], counts)
        forms[name] = {"ratio": ratio, "error": error}
    perplexity = float(np.exp(sum(own) / sum(counts)))
    return {"tokens": sum(counts), "documents": len(counts), "perplexity": perplexity, "forms": forms}


def _cell(ratio: float, error: float) -> str:
    text = f"{ratio:.4f} ± {error:.4f}"
    return text if ratio + 2 * error <= _GATE else f"**{text}**"


def table(result: Mapping[str, Any]) -> str:
    """Return the table of the figures. What is not below the gate by two standard errors is bold."""
    models, profile = result["models"], bytes_of_position(PROFILE)
    rows = [("8, the profile", f"{profile:,}", *(f"1 ({model['perplexity']:.4f})" for model in models.values()))]
    for name, count in result["bytes"].items():
        cells = [_cell(**model["forms"][name]) for model in models.values()]
        rows.append((name, f"{count:,} ({count / profile:.0%})", *cells))
    return markdown_table(("bits", "bytes of a position of 0.73B", *(f"`{name}`" for name in models)), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "-m", "--models", nargs="+", default=MODELS, metavar="MODEL", help="embedded models, or bundles"
    )
    parser.add_argument("--text", type=Path, default=demo.HELD_OUT, help="documents, with an empty line between them")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="least tokens of a window")
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS), metavar="FORM")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on stdout")
    parser.add_argument("--write-docs", action="store_true", help="write the table into the page that has it")
    options = parser.parse_args()
    changed = any(getattr(options, name) != parser.get_default(name) for name in ("models", "text", "tokens", "forms"))
    if options.write_docs and changed:
        parser.error("--write-docs writes the whole table; leave out -m, --text, --tokens and --forms")
    text = options.text.read_text("utf-8")
    result: dict[str, Any] = {"bytes": {name: bytes_of_position(FORMS[name]) for name in options.forms}, "models": {}}
    for name in options.models:
        bundle = Bundle.open(demo.bundle_path(name) if name in demo.NAMES else Path(name))
        result["models"][name if name in demo.NAMES else bundle.path.stem] = measure(
            bundle, text, options.tokens, options.forms
        )
    if options.write_docs:
        write_blocks({"kv rows": table(result)})
    if options.json:
        print_json(result)
    else:
        print(table(result))


if __name__ == "__main__":
    main()
