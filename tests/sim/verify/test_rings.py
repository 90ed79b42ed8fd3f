"""Run hundreds of tokens through the RTL of a small top with rings: all integers equal the reference's, wrap after wrap.

In the second case, query heads attend together as well.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgedec.hw.config import RING_SLACK
from edgedec.schemes import TernaryScheme
from edgedec.sim.verify.cocotb_runner import missing_tools
from edgedec.sim.verify.token_run import TokenRun
from tests.edgedec.reference.integer_profile.support.make_models import VOCAB, float_model, prepared
from tests.sim.support.make_small_top import CONFIG

# The top takes minutes to compile.
pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")]

WINDOW = 10


@pytest.mark.parametrize("shared", [False, True])
def test_trees_commits_and_ways_back_equal_the_reference(shared: bool) -> None:
    """Give the lower of two layers a window, and go round its ring three times."""
    graph, weights = float_model(TernaryScheme(), {"head_dim": 8, "attention_bias": False})
    (lower, _) = graph.states
    states = {**graph.states, lower: replace(graph.states[lower], window=WINDOW)}
    config = replace(CONFIG, context=300, window=WINDOW, shared=shared)
    run = TokenRun(prepared(replace(graph, states=states), weights), config)
    rows = run.program.config.ring
    assert rows is not None
    rng, longest, turn = np.random.default_rng(3), 0, 50
    run.run(rng.integers(0, VOCAB, 2 * WINDOW).tolist(), 3)
    while longest < 3 * rows.rows + 5:
        n = int(rng.integers(1, CONFIG.slots + 1))
        parents = [-1, *(int(rng.integers(-1, i)) for i in range(1, n))]
        path = [n - 1]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        run.tree(rng.integers(0, VOCAB, n).tolist(), parents, keep=path)
        longest = max(longest, run.verified.driver.length)
        if longest >= turn:
            run.verified.truncate(longest - RING_SLACK)
            turn += 50
    run.run([9], 2)
    compared = run.verified.compared
    assert compared["attention outputs"] > 0
    assert compared["cache bytes"] > 0
