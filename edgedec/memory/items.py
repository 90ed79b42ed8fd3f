"""The items of a plan: the table of their names, when each exists, and the part of a server that it is shown under."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from edgedec.errors import EdgedecError, UsageError

__all__ = ["DRAFT", "ITEMS", "PER_TEXT", "WEIGHT_ITEMS", "MemoryItem", "check_beside", "check_items", "memory_item"]

DRAFT = "draft_"  # prefix of a drafter's items; the rest is the name of the same item of a target, or a name of its own
_ALL: tuple[Literal["load", "run"], ...] = ("load", "run")


@dataclass(frozen=True, kw_only=True)
class MemoryItem:
    """A part of a plan's memory.

    Members:
        name: its name in plans.
        phases: "load", while the model is loaded, and "run", from the first pass on.
        part: part of a server's ledger; "requests" take the place of their items.
        weights: True for weights: all of a model, or those that stay in memory and the window for the others.
        per_text: True if each text has it. All texts share others.
        beside: True if a program may keep it beside the model. Others are the plan's own.
    """

    name: str
    phases: tuple[Literal["load", "run"], ...] = _ALL
    part: str = "passes"
    weights: bool = False
    per_text: bool = False
    beside: bool = False


_TABLE = (
    *(MemoryItem(name=name, part="weights", weights=True) for name in ("weights", "weights_pinned", "weights_window")),
    MemoryItem(name="draft_weights", part="drafter", weights=True),
    *(MemoryItem(name=name, part="weights") for name in ("rotary_tables", "session")),
    *(MemoryItem(name=name) for name in ("onnx_runtime", "recurrent", "masks", "block_tables", "features")),
    *(MemoryItem(name=name, phases=("load",)) for name in ("load_transient", "self_test", "tokenizer_transient")),
    *(MemoryItem(name=name, phases=("run",), part="arena") for name in ("kv", "kv_ring", "kv_labels", "kv_value_rows")),
    *(MemoryItem(name=name, phases=("run",)) for name in ("logits", "activations", "workspace", "sampling")),
    # items of the portable graph
    *(MemoryItem(name=name, phases=("run",)) for name in ("attention_bias", "attention_scores")),
    *(MemoryItem(name=name) for name in ("embeds", "head", "moves", "programs", "readback")),  # items of a GPU
    *(MemoryItem(name=name) for name in ("embedding", "program")),  # items of an accelerator
    *(
        MemoryItem(name=f"draft_{name}", part="drafter", per_text=True)
        for name in ("index", "objects", "states", "table", "text", "top")
    ),
    MemoryItem(name="tokenizer", part="tokenizer"),
    MemoryItem(name="host", part="requests"),
    MemoryItem(name="taps"),  # values of layers, for drafters and embeddings
    *(MemoryItem(name=name, part=name, beside=True) for name in ("grammars", "connections")),  # items of a server
    MemoryItem(name="grammar_room", phases=("run",), part="requests", beside=True),
)
ITEMS = {item.name: item for item in _TABLE}
WEIGHT_ITEMS = frozenset(item.name for item in _TABLE if item.weights)
_SHARED = frozenset({"onnx_runtime"})  # a draft model of the portable graph needs the library that its target may need
PER_TEXT = frozenset(item.name for item in _TABLE if item.per_text)


@functools.cache
def memory_item(name: str) -> MemoryItem:
    """Return the item of a name.

    A drafter of one's own (``draft_...``) and what a program keeps beside a model may have any name: these exist in all
    phases. ``check_items`` refuses other names where items are made.
    """
    if name in ITEMS:
        return ITEMS[name]
    own = MemoryItem(name=name)
    return (
        replace(ITEMS.get(name.removeprefix(DRAFT), own), name=name, part="drafter") if name.startswith(DRAFT) else own
    )


def check_beside(names: Iterable[str]) -> None:
    """Check the names of what a program keeps beside a model, which must not take the place of a plan's own items.

    Raises:
        UsageError: a name is one of these.
    """
    for name in names:
        if name.startswith(DRAFT) or (name in ITEMS and not ITEMS[name].beside):
            raise UsageError(f"beside has {name!r}, which names an item of the plan's own; give it another name")


def check_items(names: Iterable[str], source: str, prefix: str | None = None) -> None:
    """Check that the items of a footprint are in the table, so that none is charged to a phase by chance.

    Args:
        names: names of the items.
        source: the part of a run that has them, for the message.
        prefix: names must begin so, and are free otherwise, so that none takes the place of another part's item.

    Raises:
        EdgedecError: the table has no such name, or it does not begin with the prefix.
    """
    for name in names:
        if not (name.startswith(prefix) or name in _SHARED if prefix else name in ITEMS):
            free = f"; own names begin with {prefix}" if prefix else ""
            raise EdgedecError(
                f"the footprint of {source} has the item {name!r}, which no plan knows: add its phases and its part to "
                f"the table of edgedec/memory/items.py{free}"
            )
