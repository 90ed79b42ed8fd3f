"""Policies that let some heads see a window only."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from edgedec.errors import BundleError
from edgedec.graph.graph import Graph
from edgedec.kv.head_groups import stream_heads
from edgedec.kv.policies import KIND, KV_POLICY, WEIGHTS_HASH, check_keys, objects

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MOST_POSITIONS", "POLICY", "DuoPolicy"]

MOST_POSITIONS = 1 << 24  # limit on sinks and windows, the most positions of a cache


@dataclass(frozen=True, kw_only=True)
class DuoPolicy:
    """Streaming heads, which see the first ``sinks`` and the last ``window`` positions; the others see all.

    Source: 2410.10819 (DuoAttention).

    Members:
        weights_sha256: see ``KvPolicy``.
        sinks, window: numbers of positions.
        streaming: key/value heads of each state of the model's graph in ascending order; those of an absent state keep all
            rows.

    Raises:
        BundleError: a number or a list is not as it must be.
    """

    kind: ClassVar[str] = "duo"
    weights_sha256: str
    sinks: int
    window: int
    streaming: Mapping[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        for name, value, least in (("sinks", self.sinks, 0), ("window", self.window, 1)):
            if type(value) is not int or not least <= value <= MOST_POSITIONS:
                raise BundleError(
                    f"configuration: {name} of {KV_POLICY} must be {least} to {MOST_POSITIONS}, not {reprlib.repr(value)}"
                )
        for state, heads in self.streaming.items():
            if not all(type(head) is int for head in heads) or list(heads) != sorted(set(heads)):
                raise BundleError(
                    f"configuration: streaming heads of {reprlib.repr(state)} in {KV_POLICY} must be ascending numbers, not "
                    f"{reprlib.repr(list(heads))}"
                )

    def apply(self, graph: Graph) -> Graph:
        """Return the graph in which streaming heads have states of their own; see ``stream_heads``."""
        return stream_heads(graph, self.streaming, sinks=self.sinks, window=self.window)

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the configuration."""
        streaming = {state: list(heads) for state, heads in self.streaming.items()}
        return {
            KIND: self.kind,
            WEIGHTS_HASH: self.weights_sha256,
            "sinks": self.sinks,
            "window": self.window,
            "streaming": streaming,
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Return the policy of an entry."""
        check_keys(entry, {KIND, WEIGHTS_HASH, "sinks", "window", "streaming"})
        streaming = objects(entry, "streaming", list, "lists")
        return cls(
            weights_sha256=entry[WEIGHTS_HASH],
            sinks=entry["sinks"],
            window=entry["window"],
            streaming={state: tuple(heads) for state, heads in streaming.items()},
        )

    def lines(self) -> list[tuple[str, str]]:
        """Return names and values of what it says, for people."""
        heads = [
            (f"{state}, streaming heads", ", ".join(map(str, heads)) or "none")
            for state, heads in self.streaming.items()
        ]
        return [("policy of keys and values", f"{self.kind}: {self.sinks} sinks, window {self.window}"), *heads]


POLICY = DuoPolicy
