"""Policies that store keys as products with few directions, and let each query read few values from a file.

Source: 2410.21465 (ShadowKV), which takes the directions from the singular vectors of the prompt's keys. Here a calibration
finds them once, so that a text does not depend on the length of its prompt or on the pieces in which it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from edgedec.graph.graph import Graph
from edgedec.graph.low_rank import KeyBasis
from edgedec.graph.ops import Attention, LowRankKeys, Operation, Rope
from edgedec.kv.policies import KIND, WEIGHTS_HASH, check_keys, objects
from edgedec.kv.policies._selecting import SelectingPolicy, change_states

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["POLICY", "ShadowKvPolicy"]

_RANK, _DIRECTIONS = "rank", "directions"  # keys of a state's entry, besides those of its selection


@dataclass(frozen=True, kw_only=True)
class ShadowKvPolicy(SelectingPolicy):
    """Queries that attend to keys which are rebuilt from few numbers, and whose values are in a file.

    Members:
        bases: the directions in which the keys of each state with a selection are stored.
    """

    kind: ClassVar[str] = "shadowkv"
    importance: ClassVar[bool] = False
    offload: ClassVar[bool] = True
    what: ClassVar[str] = (
        "queries choose the keys that they attend to, which are stored in few directions; values in a file"
    )
    bases: Mapping[str, KeyBasis]

    def apply(self, graph: Graph) -> Graph:
        """Return the graph whose states have the selections and the bases, and whose keys are rebuilt before their rotation.

        Raises:
            UnsupportedError: there is no such state, or a selection or a basis is not one of its heads.
        """
        return _rebuild_keys(super().apply(graph), self.bases)

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the configuration."""
        entry = super().to_json()
        states = {
            name: own | {_RANK: self.bases[name].rank, _DIRECTIONS: self.bases[name].to_text()}
            for name, own in entry["states"].items()
        }
        return entry | {"states": states}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Return the policy of an entry.

        Raises:
            BundleError: the entry is damaged.
            UnsupportedError: a number is out of range.
        """
        check_keys(entry, {KIND, WEIGHTS_HASH, "states"})
        states, bases = dict[str, Any](), dict[str, KeyBasis]()
        for name, own in objects(entry, "states", dict, "objects").items():
            states[name] = {key: value for key, value in own.items() if key not in (_RANK, _DIRECTIONS)}
            check_keys(own, {*states[name], _RANK, _DIRECTIONS})
            bases[name] = KeyBasis.from_json(own[_RANK], own[_DIRECTIONS])
        selections = cls.read_selections({**entry, "states": states})
        return cls(weights_sha256=entry[WEIGHTS_HASH], selections=selections, bases=bases)

    def lines(self) -> list[tuple[str, str]]:
        """Return names and values of what it says, for people."""
        first, *others = super().lines()
        return [first, *((name, f"{text}; keys of {self.bases[name].rank} numbers") for name, text in others)]


def _rebuild_keys(graph: Graph, bases: Mapping[str, KeyBasis]) -> Graph:
    """Return the graph whose states have bases, by name, with the operation that rebuilds keys before their rotation.

    Raises:
        UnsupportedError: a state is not there, or a basis is not one of its heads.
    """
    graph = change_states(graph, {name: {"basis": basis} for name, basis in bases.items()})
    makers = {output: op for op in graph.operations for output in op.outputs}
    places = dict[str, tuple[str, str]]()  # the value that is rebuilt -> its new name, and the state
    for op in graph.operations:
        if isinstance(op, Attention) and op.state in bases:
            keys = op.inputs[1]
            maker = makers.get(keys)
            plain = maker.inputs[0] if isinstance(maker, Rope) else keys
            places[plain] = f"{plain}.rebuilt", op.state
    operations, values = list[Operation](), dict(graph.values)
    for op in graph.operations:
        operations.append(op)
        for name in op.outputs:
            if name in places:
                rebuilt, state = places[name]
                values[rebuilt] = replace(values[name], name=rebuilt)
                operations.append(LowRankKeys(name=rebuilt, inputs=(name,), outputs=(rebuilt,), state=state))
    return replace(graph, operations=tuple(_reading(op, places, bases) for op in operations), values=values)


def _reading(op: Operation, places: Mapping[str, tuple[str, str]], bases: Mapping[str, KeyBasis]) -> Operation:
    """Return a rotation, or an attention without one, that reads rebuilt keys in the place of the others."""
    if isinstance(op, Rope) and op.inputs[0] in places:
        return replace(op, inputs=(places[op.inputs[0]][0], *op.inputs[1:]))
    if isinstance(op, Attention) and op.state in bases and op.inputs[1] in places:
        return replace(op, inputs=(op.inputs[0], places[op.inputs[1]][0], *op.inputs[2:]))
    return op


POLICY = ShadowKvPolicy
