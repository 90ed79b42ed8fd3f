"""Test the order of rows that makes pairs of the rotation."""

from __future__ import annotations

import pytest

from edgedec.graph.ops import Linear
from edgedec.hw.compiler.routes import Routes
from edgedec.hw.isa.instructions import Sink
from tests.edgedec.reference.integer_profile.support.make_models import tiny


@pytest.mark.parametrize(("kind", "interleaved"), [("planes1", True), ("planes2", False)])
def test_interleaved_pairs_are_moved_half_a_head_apart(kind: str, interleaved: bool) -> None:
    """Check that element i and i + 5 of a head of ten are neighbours in the model, and that values stay."""
    graph = tiny(kind)[0]
    routes, found = Routes(graph), dict[Sink, list[int] | None]()
    for op in graph.operations:
        if isinstance(op, Linear):
            for job in routes.jobs(op):
                if job.sink in (Sink.QUERIES, Sink.KEYS, Sink.VALUES):
                    order = routes.order(job)
                    found[job.sink] = None if order is None else order.tolist()
    head = [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
    assert found == {
        Sink.QUERIES: [10 * n + at for n in range(4) for at in head] if interleaved else None,
        Sink.KEYS: [10 * n + at for n in range(2) for at in head] if interleaved else None,
        Sink.VALUES: None,
    }
