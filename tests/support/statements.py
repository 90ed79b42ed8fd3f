"""Walk over the statements of a syntax tree without their expressions, which are nine tenths of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # members that hold statements, or what holds them


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the tree, and its statements, handlers and cases in whatever block they are, in the order of ``ast.walk``."""
    nodes = [tree]
    for node in nodes:  # the list grows meanwhile
        yield node
        for name in _BLOCKS:
            nodes += getattr(node, name, ())
