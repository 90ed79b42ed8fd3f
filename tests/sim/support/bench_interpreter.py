"""Run a program in the interpreter together with the model that it was compiled from, and compare everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import Embed, RmsNorm, Rope
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.host import ProgramHost
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.compiler.routes import head_order
from edgedec.reference.integer_profile import head
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.sim.interpreter import Interpreter

I64 = NDArray[np.int64]


def compiled(model: IntegerModel, **overrides: Any) -> Program:
    return compile_model(model, config_for(model, **{"context": 64, **overrides}))


class Both:
    """Run one sequence in both."""

    def __init__(self, model: IntegerModel, program: Program) -> None:
        self.model, self.sequence, self.machine = model, model.open(), Interpreter(program)
        self.head_dim = program.config.head_dim
        (embed,) = (op for op in model.graph.operations if isinstance(op, Embed))
        self.host, self.slots = ProgramHost(program, model.constants[embed.name].weight), program.config.slots
        self.compared: set[str] = set()
        # The compiler gives each head of queries and keys the order of columns that the rotation needs.
        self.orders: dict[str, I64] = {}
        for op in model.graph.operations:
            if isinstance(op, Rope):
                (attention,) = (consumer for consumer in model.graph.operations if op.outputs[0] in consumer.inputs)
                norm = next((one for one in model.graph.operations if op.inputs[0] in one.outputs), None)
                before = norm.inputs if isinstance(norm, RmsNorm) else ()
                moved = (*before, op.inputs[0], op.outputs[0], f"{attention.name}.q12", f"{attention.name}.k8")
                self.orders |= dict.fromkeys(moved, head_order(op))

    def run(self, ids: Sequence[int], parents: Sequence[int] | None = None, logits: int = 2) -> None:
        """Run a pass over a tree, or a chain."""
        n, committed = len(ids), self.sequence.length
        parents = range(-1, n - 1) if parents is None else parents
        masks, depths = [0] * n, [0] * n
        for slot, parent in enumerate(parents):
            masks[slot] = 1 << slot | (masks[parent] if parent >= 0 else 0)
            depths[slot] = depths[parent] + 1 if parent >= 0 else 0
        positions = np.array(depths, np.int32) + np.int32(committed)
        array = np.array(ids, np.int32)
        traced: dict[str, I64] = {}
        actual: dict[str, I64] = {}
        self.machine.input[:] = self.host.input(array, positions)
        self.machine.run_pass(n, committed, masks, positions.tolist(), logits, trace=actual.__setitem__)
        visible = np.array(masks)[:, None] >> np.arange(n) & 1 == 1
        expected = self.sequence.forward(
            array, positions=positions, visible=visible, trace=traced.__setitem__, check=True
        )
        self._compare(traced, actual)
        rows = np.arange(n, dtype=np.int32)
        if logits:
            best = self.host.results(self.machine.output, rows)
            k = best.ids.shape[1]
            assert np.array_equal(best.ids, head.top(expected, k))
            assert np.array_equal(best.logits, np.take_along_axis(expected.values, best.ids, axis=1))
            assert np.array_equal(best.real, np.take_along_axis(head.real(expected), best.ids.astype(np.int64), axis=1))
            assert np.array_equal(best.mantissa, expected.mantissa)
            assert np.array_equal(best.exponent, expected.exponent)
        if logits == 2:
            whole = self.host.logits(self.machine.output, rows)
            assert np.array_equal(whole.values, expected.values)
            assert np.array_equal(head.real(whole), head.real(expected))

    def _compare(self, expected: dict[str, I64], actual: dict[str, I64]) -> None:
        for name, values in actual.items():
            if "|" in name:  # rows of gate and up by turns
                for part, part_name in enumerate(name.split("|")):
                    self._same(part_name, expected[part_name], values[:, part::2])
                continue
            assert name in expected
            self._same(name, expected[name], values)

    def _same(self, name: str, expected: I64, actual: I64) -> None:
        """Compare values; zeros after the end of codes, which come in blocks, are allowed.

        The probabilities of a ring lack those of positions that are not read, which nothing sees.
        """
        if name.endswith(".p"):
            missing = expected.shape[-1] - actual.shape[-1]
            assert not expected[..., :missing].any(), name
            expected = expected[..., missing:]
        if name in self.orders:
            heads = expected.reshape(len(expected), -1, self.head_dim)
            expected = heads[..., self.orders[name]].reshape(expected.shape)
        if name.endswith(".codes"):
            width = expected.shape[-1]
            assert not actual[..., width:].any(), name
            actual = actual[..., :width]
        assert np.array_equal(expected, actual), name
        self.compared.add(name)

    def commit(self, nodes: Sequence[int]) -> None:
        committed = self.sequence.length
        self.sequence.commit(np.array(nodes, np.int32))
        self.machine.commit(committed, sum(1 << node for node in nodes))
