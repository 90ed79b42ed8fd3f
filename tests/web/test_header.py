"""The header of a pass in JavaScript has the words that the Python side writes."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.runtime.gpu.kernels.head import HeadLayout
from edgedec.runtime.visibility import tree
from tests.web.support.node import Node

pytestmark = pytest.mark.thorough


def test_the_words_are_those_of_python(node: Node) -> None:
    layout = HeadLayout(rows=40, results=3, blocks=8)
    passes = [([5, 6, 7], 0, [2]), (list(range(40)), 33, [0, 7, 39]), ([9], 127, [0]), (list(range(33)), 3, [])]
    results = node.run(
        """
        const { Header } = await use("header");
        return value.passes.map((pass) => [...new Header(value.layout).write(...pass)]);
        """,
        {"layout": {"rows": 40, "results": 3, "blocks": 8}, "passes": passes},
    )
    for (ids, past, result_rows), words in zip(passes, results, strict=True):
        n = len(ids)
        header = layout.new()
        layout.write(
            header,
            ids=np.array(ids, np.int32),
            positions=np.arange(past, past + n, dtype=np.int32),
            sequences=[(n, past)],
            result_rows=np.array(result_rows, np.int32),
            visible=tree(np.arange(-1, n - 1, dtype=np.int32)),
            tables=[np.arange(8, dtype=np.int32)],
        )
        assert words == header.tolist(), (n, past)


def test_a_pass_that_does_not_fit_is_refused(node: Node) -> None:
    message = node.run(
        """
        const { Header } = await use("header");
        try {
          new Header({ rows: 4, results: 1, blocks: 1 }).write([1, 2], 15, [1]);
        } catch (error) {
          return error.message;
        }
        """
    )
    assert message == "a pass of 2 rows after 15 with 1 results does not fit the program"
