"""Divide the key/value heads of attentions into those that keep all rows and those that see a window.

The heads of one attention become two attentions on two states, each with its own heads, window and rows. Everything that
reads states (planner, cache, executors) then handles a group of heads as it handles a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from edgedec.errors import UnsupportedError
from edgedec.graph.graph import Graph, KvState, Value
from edgedec.graph.ops import Attention, Concat, Operation, Rope, Split

__all__ = ["RETRIEVAL", "STREAMING", "stream_heads"]

RETRIEVAL, STREAMING = "retrieval", "streaming"  # ends of the names of the states, and of the values, of the two groups


def stream_heads(graph: Graph, streaming: Mapping[str, Iterable[int]], *, sinks: int, window: int) -> Graph:
    """Let some key/value heads see the first ``sinks`` and the last ``window`` positions only.

    A state without other heads gets the window itself. A state NAME with both kinds of heads becomes the states
    ``NAME.retrieval`` and ``NAME.streaming``, and its attention becomes one for each of them. Queries, keys and values are
    divided before their rotation, so that executors that rotate within attention still can; the results are put together
    in the order of the heads. No value after the attention gets another name.

    Args:
        graph: a family's graph.
        streaming: key/value heads by the name of their state; a state that is absent has none.
        sinks: number of first positions.
        window: number of last positions.

    Raises:
        UnsupportedError: there is no such state or head, the state has a window already, or several attentions read it and
            only some of its heads are streaming.
    """
    chosen = {name: frozenset(heads) for name, heads in streaming.items()}
    for name, heads in chosen.items():
        _check(graph, name, heads)
    states = dict[str, KvState]()
    mixed = dict[str, frozenset[int]]()
    for name, state in graph.states.items():
        heads = chosen.get(name, frozenset())
        if not heads:
            states[name] = state
        elif len(heads) == state.kv_heads:
            states[name] = replace(state, sinks=sinks, window=window)
        else:
            if sum(isinstance(op, Attention) and op.state == name for op in graph.operations) > 1:
                raise UnsupportedError(
                    f"state {name}: several attentions read it, so all or none of its heads can stream"
                )
            mixed[name] = heads
            kept = replace(state, name=f"{name}.{RETRIEVAL}", kv_heads=state.kv_heads - len(heads))
            ring = replace(state, name=f"{name}.{STREAMING}", kv_heads=len(heads), sinks=sinks, window=window)
            states |= {kept.name: kept, ring.name: ring}
    if not mixed:
        return replace(graph, states=states)
    return _Division(graph, mixed).graph(states)


def _check(graph: Graph, name: str, heads: frozenset[int]) -> None:
    state = graph.states.get(name)
    if state is None:
        raise UnsupportedError(f"there is no state {name!r} whose heads could see a window")
    if state.window is not None:
        raise UnsupportedError(f"state {name}: its heads have a window of {state.window} positions already")
    if outside := sorted(head for head in heads if not 0 <= head < state.kv_heads):
        raise UnsupportedError(f"state {name}: there is no key/value head {outside[0]}; it has {state.kv_heads}")


@dataclass
class _Division:
    """A graph under construction, in which the attentions of ``mixed`` states are divided."""

    source: Graph
    mixed: Mapping[str, frozenset[int]]
    operations: list[Operation] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)

    def graph(self, states: Mapping[str, KvState]) -> Graph:
        self.values = dict(self.source.values)
        attentions = [op for op in self.source.operations if isinstance(op, Attention) and op.state in self.mixed]
        turns = {id(turn) for op in attentions for turn in map(self._rotation, op.inputs[:2]) if turn}
        for op in self.source.operations:
            if id(op) in turns:  # rotated after the division
                del self.values[op.outputs[0]]
            elif isinstance(op, Attention) and op.state in self.mixed:
                self._attention(op)
            else:
                self.operations.append(op)
        return replace(self.source, operations=tuple(self.operations), values=self.values, states=states)

    def _rotation(self, value: str) -> Rope | None:
        """Return the rotation that makes a value which nothing but its attention reads, or None."""
        readers = sum(value in op.inputs for op in self.source.operations)
        makers = [op for op in self.source.operations if isinstance(op, Rope) and value in op.outputs]
        return makers[0] if makers and readers == 1 and value not in self.source.outputs else None

    def _emit(self, operation: Operation, *widths: int) -> tuple[str, ...]:
        self.operations.append(operation)
        for name, width in zip(operation.outputs, widths, strict=True):
            self.values[name] = Value(name=name, shape=("n", width))
        return operation.outputs

    def _attention(self, op: Attention) -> None:
        """Append the two attentions in the place of ``op``."""
        state, heads = self.source.states[op.state], self.mixed[op.state]
        shared, width = op.heads // state.kv_heads, state.head_dim
        runs = [(kind, len(list(run))) for kind, run in groupby(range(state.kv_heads), key=heads.__contains__)]
        parts = [
            self._divided(name, runs, width * (shared if at == 0 else 1), width) for at, name in enumerate(op.inputs)
        ]
        made = dict[bool, list[str]]()
        for kind, end in ((False, RETRIEVAL), (True, STREAMING)):
            own = [count for of, count in runs if of == kind]
            count = sum(own)
            part = replace(
                op,
                name=f"{op.name}.{end}",
                inputs=tuple(groups[kind] for groups in parts),
                outputs=(f"{op.outputs[0]}.{end}",),
                state=f"{op.state}.{end}",
                heads=count * shared,
            )
            (mixed,) = self._emit(part, count * shared * width)
            made[kind] = self._split(mixed, [size * shared * width for size in own])
        together = Concat(name=op.name, inputs=tuple(made[kind].pop(0) for kind, _ in runs), outputs=op.outputs)
        self._emit(together, op.heads * width)

    def _divided(self, value: str, runs: Sequence[tuple[bool, int]], columns: int, head_dim: int) -> dict[bool, str]:
        """Return the values of the heads that keep all rows (False) and of the streaming ones (True).

        Args:
            value: an input of an attention.
            runs: neighbouring key/value heads of one kind, and their number.
            columns: columns of ``value`` for each key/value head.
            head_dim: columns of a head.
        """
        turn = self._rotation(value)
        source = turn.inputs[0] if turn else value
        pieces = self._split(source, [count * columns for _, count in runs])
        result = dict[bool, str]()
        for kind, end in ((False, RETRIEVAL), (True, STREAMING)):
            own = [piece for piece, (of, _) in zip(pieces, runs, strict=True) if of == kind]
            width = columns * sum(count for of, count in runs if of == kind)
            part = own[0]
            if len(own) > 1:
                name = f"{source}.{end}"
                (part,) = self._emit(Concat(name=name, inputs=tuple(own), outputs=(name,)), width)
            if turn:
                name, inputs = f"{value}.{end}", (part, *turn.inputs[1:])
                turned = replace(turn, name=name, inputs=inputs, outputs=(name,), heads=width // head_dim)
                (part,) = self._emit(turned, width)
            result[kind] = part
        return result

    def _split(self, value: str, widths: Sequence[int]) -> list[str]:
        """Return the parts of a value's columns, which is the value itself if there is one part."""
        if len(widths) == 1:
            return [value]
        outputs = tuple(f"{value}.{number}" for number in range(len(widths)))
        split = Split(name=f"{value}.parts", inputs=(value,), outputs=outputs, widths=tuple(widths))
        return list(self._emit(split, *widths))
