"""The common part of policies whose queries choose keys: their selections, by state of the model's graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from edgedec.errors import BundleError, UnsupportedError
from edgedec.graph.graph import Graph
from edgedec.graph.selection import Selection
from edgedec.kv.policies import KIND, KV_POLICY, WEIGHTS_HASH, check_keys, objects

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SelectingPolicy", "change_states"]

_NUMBERS, _LISTS = ("keys", "sinks", "recent", "bits", "share"), ("channels", "steps")


def change_states(graph: Graph, changes: Mapping[str, Mapping[str, Any]]) -> Graph:
    """Return the graph whose states, by name, have these members changed.

    Raises:
        UnsupportedError: there is no such state, or a change is not one of its heads.
    """
    for name in changes:
        if name not in graph.states:
            raise UnsupportedError(f"there is no state {name!r} whose queries could choose keys")
    states = {name: replace(state, **changes.get(name, {})) for name, state in graph.states.items()}
    return replace(graph, states=states)


def _lists(entry: Mapping[str, Any], key: str) -> tuple[tuple[Any, ...], ...]:
    value = entry[key]
    if not isinstance(value, list) or not all(isinstance(own, list) for own in value):
        raise BundleError(f"configuration: {key} of {KV_POLICY} must be a list of lists; calibrate again")
    return tuple(map(tuple, value))


def _selections_to_json(selections: Mapping[str, Selection], *, importance: bool) -> dict[str, Any]:
    """Return the entries of selections by state; with ``importance`` they have that of keys, too."""
    numbers, lists = _fields(importance)
    return {
        name: {number: getattr(selection, number) for number in numbers}
        | {key: [list(own) for own in getattr(selection, key)] for key in lists}
        for name, selection in selections.items()
    }


def _read_selections(entry: Mapping[str, Any], *, importance: bool) -> dict[str, Selection]:
    """Return the selections of a policy's entry, by state.

    Raises:
        BundleError: the entry is damaged.
        UnsupportedError: a number is out of range.
    """
    check_keys(entry, {KIND, WEIGHTS_HASH, "states"})
    numbers, lists = _fields(importance)
    selections = {}
    for name, own in objects(entry, "states", dict, "objects").items():
        check_keys(own, {*numbers, *lists})
        fields: dict[str, Any] = {number: own[number] for number in numbers} | {key: _lists(own, key) for key in lists}
        selections[name] = Selection(**fields)
    return selections


def _fields(importance: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the numbers and of the lists of a selection's entry."""
    return ((*_NUMBERS, "kept"), (*_LISTS, "importance")) if importance else (_NUMBERS, _LISTS)


def _selection_lines(selections: Mapping[str, Selection]) -> list[tuple[str, str]]:
    """Return names of states and their selections, for people."""
    rows = []
    for name, selection in selections.items():
        share = f", or {100 * selection.share:g} % of those seen" if selection.share else ""
        kept = f", {selection.kept} important" if selection.kept else ""
        what = (
            f"{selection.keys} keys{share}, {selection.sinks} sinks{kept} and {selection.recent} recent ones among them"
        )
        label = f"labels of {len(selection.channels[0])} channels, {selection.bits} bits"
        rows.append((name, f"{what}; {label}"))
    return rows


@dataclass(frozen=True, kw_only=True)
class SelectingPolicy:
    """A policy whose queries choose the keys that they attend to. Each kind is a class of its own.

    Members:
        importance: True if selections have an importance of keys.
        offload: True if values may lie in a file.
        what: sentence about the kind, for people.
        weights_sha256: see ``KvPolicy``.
        selections: the choice of keys for each state of the model's graph; queries of an absent state attend to all keys.
    """

    kind: ClassVar[str]
    importance: ClassVar[bool]
    offload: ClassVar[bool] = False
    what: ClassVar[str]
    weights_sha256: str
    selections: Mapping[str, Selection]

    def apply(self, graph: Graph) -> Graph:
        """Return the graph whose states have the selections.

        Raises:
            UnsupportedError: there is no such state, or a selection is not one of its heads.
        """
        own = {name: {"selection": selection, "offload": self.offload} for name, selection in self.selections.items()}
        return change_states(graph, own)

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the configuration."""
        states = _selections_to_json(self.selections, importance=self.importance)
        return {KIND: self.kind, WEIGHTS_HASH: self.weights_sha256, "states": states}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Return the policy of an entry.

        Raises:
            BundleError: the entry is damaged.
            UnsupportedError: a number is out of range.
        """
        return cls(weights_sha256=entry[WEIGHTS_HASH], selections=cls.read_selections(entry))

    @classmethod
    def read_selections(cls, entry: Mapping[str, Any]) -> dict[str, Selection]:
        """Return the selections of an entry, by state.

        Raises:
            BundleError: the entry is damaged.
            UnsupportedError: a number is out of range.
        """
        return _read_selections(entry, importance=cls.importance)

    def lines(self) -> list[tuple[str, str]]:
        """Return names and values of what it says, for people."""
        return [("policy of keys and values", f"{self.kind}: {self.what}"), *_selection_lines(self.selections)]
