"""The destinations of a linear's outputs, derived from the graph."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.graph import Graph
from edgedec.graph.ops import Add, Attention, GatedActivation, Linear, Operation, RmsNorm, Rope
from edgedec.hw.compiler.matrix import unsupported
from edgedec.hw.isa.instructions import Sink
from edgedec.reference.float_profile.ops.rope import pair_columns

__all__ = ["PARTS", "RouteJob", "Routes", "head_order"]

I64 = NDArray[np.int64]

PARTS = (Sink.QUERIES, Sink.KEYS, Sink.VALUES)  # sinks of an attention's inputs, in their order


@dataclass(frozen=True, kw_only=True)
class RouteJob:
    """Matrices of a linear that go to one sink together.

    Members:
        reader: operation that reads them there, after their norm if there is one.
    """

    sink: Sink
    indices: tuple[int, ...]
    reader: Operation | None


class Routes:
    """The makers and readers of the values of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._makers = {name: op for op in graph.operations for name in op.outputs}
        self._readers = graph.readers()

    def maker(self, name: str) -> Operation:
        return self._makers[name]

    def readers(self, name: str) -> Sequence[Operation]:
        return self._readers.get(name, ())

    def only_reader(self, op: Operation) -> Operation:
        """Return the reader of an operation's output.

        Raises:
            UnsupportedError: there is no reader, or more than one.
        """
        readers = self.readers(op.outputs[0])
        if len(readers) != 1:
            raise unsupported(op, f"{len(readers)} operations read {op.outputs[0]}; one can: repeat it for each")
        return readers[0]

    def jobs(self, op: Linear) -> list[RouteJob]:
        """Return the jobs of a linear: queries, keys and values in this order, gate and up together."""
        jobs: list[RouteJob] = []
        gated: dict[GatedActivation, dict[int, int]] = {}
        for index, output in enumerate(op.outputs):
            readers = self.readers(output)
            if output in self._graph.outputs and not readers:
                jobs.append(RouteJob(sink=Sink.LOGITS, indices=(index,), reader=None))
                continue
            if len(readers) != 1:
                raise unsupported(op, f"{len(readers)} operations read {output}; one can: repeat the matrix")
            (reader,) = readers
            if isinstance(reader, RmsNorm) and isinstance(self.only_reader(reader), Add):
                reader = self.only_reader(reader)
            if isinstance(reader, Add):
                jobs.append(RouteJob(sink=Sink.RESIDUAL, indices=(index,), reader=reader))
            elif isinstance(reader, GatedActivation):
                gated.setdefault(reader, {})[reader.inputs.index(output)] = index
            else:
                jobs.append(self._attention_job(op, index, output, reader))
        for reader, indices in gated.items():
            if set(indices) != {0, 1}:
                raise unsupported(op, f"{reader.name} reads gate and up of different linears; fuse them")
            jobs.append(RouteJob(sink=Sink.GATE, indices=(indices[0], indices[1]), reader=reader))
        return sorted(jobs, key=lambda job: job.sink)

    def _attention_job(self, op: Linear, index: int, output: str, reader: Operation) -> RouteJob:
        value = output
        for kind in (RmsNorm, Rope):
            if isinstance(reader, kind):
                value = reader.outputs[0]
                reader = self.only_reader(reader)
        if not isinstance(reader, Attention) or reader.inputs.count(value) != 1:
            raise unsupported(op, f"{reader.kind} {reader.name} reads {output}; an addition, attention or a gate can")
        return RouteJob(sink=PARTS[reader.inputs.index(value)], indices=(index,), reader=reader)

    def row_norm(self, output: str) -> RmsNorm | None:
        """Return the norm of a linear's output between it and the residual, or None."""
        (reader,) = self.readers(output)
        return reader if isinstance(reader, RmsNorm) else None

    def rope(self, job: RouteJob) -> Rope | None:
        """Return the rotation between a linear and its attention, or None."""
        maker = self._last_maker(job)
        return maker if isinstance(maker, Rope) else None

    def norm(self, job: RouteJob) -> RmsNorm | None:
        """Return the norm of the heads between a linear and its attention, or None."""
        maker = self._last_maker(job)
        if isinstance(maker, Rope):
            maker = self._makers[maker.inputs[0]]
        return maker if isinstance(maker, RmsNorm) else None

    def _last_maker(self, job: RouteJob) -> Operation:
        assert job.reader is not None
        return self._makers[job.reader.inputs[PARTS.index(job.sink)]]

    def order(self, job: RouteJob) -> I64 | None:
        """Return the order of rows of queries or keys that ``head_order`` gives each head, or None if it changes nothing.

        The rotation requires it. A score is a sum over columns, so permuting queries and keys alike does not change it.
        """
        rope = self.rope(job)
        if rope is None:
            return None
        inside = head_order(rope)
        indices: I64 = (np.arange(rope.heads)[:, None] * rope.head_dim + inside).reshape(-1)
        return None if np.array_equal(inside, np.arange(rope.head_dim)) else indices


def head_order(rope: Rope) -> I64:
    """Return the order of a head's columns that makes (i, i + head_dim / 2) pair i; columns in no pair follow in pairs."""
    columns = np.arange(rope.head_dim)
    first, second = (columns[part] for part in pair_columns(rope))
    kept = columns[2 * len(first) :].reshape(2, -1)
    order: I64 = np.concatenate([first, kept[0], second, kept[1]])
    return order
