"""Provide Node.js with the JavaScript runtime."""

from __future__ import annotations

import pytest

from tests.web.support.node import Node, find_node


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Return Node.js with the runtime of a site, and no model."""
    return Node(find_node(), tmp_path_factory.mktemp("runtime"))
