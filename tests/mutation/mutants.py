"""Make small wrong edits of an Amaranth module, found in its syntax tree and made in its text.

An edit replaces one span and leaves the rest of the file unchanged, so that a mutant is one line of a diff.
"""

from __future__ import annotations

import ast
import hashlib
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["KINDS", "Mutant", "find_mutants"]

KINDS = ("operator", "comparison", "constant", "negation", "dropped", "swapped", "slice", "reset")
_OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
}
_COMPARISONS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
# An estimate is approximate by design: its own calibration test bounds it, and no unit test of the logic sees it.
# Each function that returns ``Resources`` is an estimate, too.
_LEFT_OUT = frozenset(("resources", "resources_by_part", "in_multipliers", "__repr__"))


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """Hold an edit; ``text`` is the whole file with it."""

    module: str
    kind: str
    line: int
    column: int
    before: str
    after: str
    text: str

    @property
    def key(self) -> str:
        """Return the same key for the same edit of the same file."""
        return hashlib.sha256(f"{self.module}\0{self.text}".encode()).hexdigest()[:16]

    @property
    def diff(self) -> str:
        before, after = (textwrap.shorten(text, 100, placeholder=" ...") for text in (self.before, self.after))
        return f"{self.module}.py:{self.line}:{self.column}: {before} -> {after}"

    def lines(self, original: str) -> tuple[str, str]:
        """Return the first line that the edit changes in the text ``original`` of the module, before and after it."""
        pairs = zip(original.splitlines(), self.text.splitlines(), strict=False)
        return next((before.strip(), after.strip()) for before, after in pairs if before != after)


class _Finder(ast.NodeVisitor):
    """Collect (kind, start, end, replacement), in characters."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.edits: list[tuple[str, int, int, str]] = []
        # ast counts bytes of UTF-8 within a line.
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._registers = _registers(ast.parse(text))

    def _at(self, line: int, byte: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:byte].decode())

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _source(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.text[start:end]

    def _replace(self, kind: str, node: ast.AST, after: str) -> None:
        self.edits.append((kind, *self._span(node), after))

    def _between(self, kind: str, left: ast.AST, right: ast.AST, before: str, after: str) -> None:
        """Replace a symbol between two nodes, perhaps among brackets and comments."""
        start, end = self._span(left)[1], self._span(right)[0]
        gap = re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), self.text[start:end])
        at = gap.find(before)
        if at >= 0:
            self.edits.append((kind, start + at, start + at + len(before), after))

    def generic_visit(self, node: ast.AST) -> None:
        for name in ("body", "orelse"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                self._statements(statements)
        super().generic_visit(node)

    def _statements(self, statements: list[ast.stmt]) -> None:
        for i, statement in enumerate(statements):
            if isinstance(statement, ast.AugAssign) and self._source(statement.target).startswith("m.d"):
                self._replace("dropped", statement, "pass")
            condition = _condition(statement)
            if condition is not None:
                following = statements[i + 1] if i + 1 < len(statements) else None
                kind = "swapped" if _is_block(following, "Else") else "negation"
                self._replace(kind, condition, f"({self._source(condition)}) == 0")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        is_estimate = isinstance(node.returns, ast.Name) and node.returns.id == "Resources"
        if node.name not in _LEFT_OUT and not is_estimate:
            self._statements(node.body)
            for part in (*node.args.defaults, *(d for d in node.args.kw_defaults if d), *node.body):
                self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Skip words of a message, which are no logic."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip a name made of parts, which is no logic either."""

    def visit_If(self, node: ast.If) -> None:
        self._replace("negation", node.test, f"not ({self._source(node.test)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _OPERATORS:
            self._between("operator", node.left, node.right, *_OPERATORS[type(node.op)])
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            if type(operator) in _COMPARISONS:
                self._between("comparison", left, right, *_COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Invert | ast.Not):
            self._replace("negation", node, f"({self._source(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant, kind: str = "constant") -> None:
        if type(node.value) is int:
            self._replace(kind, node, str(node.value + 1))
            self._replace(kind, node, f"({node.value - 1})" if node.value < 1 else str(node.value - 1))

    def visit_Slice(self, node: ast.Slice) -> None:
        for bound, step in ((node.lower, "+ 1"), (node.upper, "- 1")):
            if bound is not None:
                self._replace("slice", bound, f"({self._source(bound)}) {step}")
                if not isinstance(bound, ast.Constant):
                    self.visit(bound)
        if node.step is not None:
            self.visit(node.step)

    def visit_Call(self, node: ast.Call) -> None:
        for argument in node.args:
            self.visit(argument)
        self.visit(node.func)
        for keyword in node.keywords:
            if keyword.arg in ("init", "reset") and isinstance(keyword.value, ast.Constant):
                self.visit_Constant(keyword.value, "reset")
            else:
                self.visit(keyword.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        target, value = node.targets[0], node.value
        pairs: list[tuple[ast.expr, ast.expr]] = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
        for one, call in pairs:
            self._begin_at_one(_name(one), call)

    def _begin_at_one(self, name: str, call: ast.expr) -> None:
        """Change a register's initial value, which has no meaning for a signal driven by logic."""
        if not isinstance(call, ast.Call) or _name(call.func) != "Signal" or name not in self._registers:
            return
        if not any(keyword.arg == "init" for keyword in call.keywords):
            comma = ", " if call.args or call.keywords else ""
            self._replace("reset", call, f"{self._source(call)[:-1]}{comma}init=1)")


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _registers(tree: ast.AST) -> set[str]:
    """Return the names that ``m.d.sync += ...eq(...)`` assigns."""
    registers = set()
    for statement in ast.walk(tree):
        if isinstance(statement, ast.AugAssign) and _name(statement.target) == "sync":
            for node in ast.walk(statement.value):
                if isinstance(node, ast.Attribute) and node.attr == "eq":
                    registers.add(_name(node.value))
    return registers


def _is_block(statement: ast.stmt | None, name: str) -> bool:
    """Return whether the statement is ``with m.NAME(...):``."""
    if not isinstance(statement, ast.With):
        return False
    call = statement.items[0].context_expr
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == name


def _condition(statement: ast.stmt) -> ast.expr | None:
    """Return the condition of ``with m.If(...)`` or ``m.Elif(...)``."""
    if not (_is_block(statement, "If") or _is_block(statement, "Elif")):
        return None
    assert isinstance(statement, ast.With)
    call = statement.items[0].context_expr
    return call.args[0] if isinstance(call, ast.Call) and len(call.args) == 1 else None


def _blocks(tree: ast.Module, text: str) -> list[tuple[int, int]]:
    """Return the begin and end of each function, or other statement of a module or class, in characters; the whole
    file last.
    """
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    spans, pending = [], list(tree.body)
    for statement in pending:
        if isinstance(statement, ast.ClassDef):
            pending += statement.body
        else:
            assert statement.end_lineno is not None
            spans.append((starts[statement.lineno - 1], starts[statement.end_lineno]))
    return [*sorted(spans), (0, len(text))]  # decorators and bases are in the whole file only


def _meaning(block: str) -> str:
    """Return a normal form of the block.

    Raises:
        SyntaxError: it is not a statement.
    """
    return ast.dump(ast.parse(f"if 1:\n{block}" if block[0] in " \t" else block))


def find_mutants(module: str, text: str) -> Iterator[Mutant]:
    """Return all of a file's mutants, in the order of their places; each parses, and differs from the file in meaning."""
    finder = _Finder(text)
    tree = ast.parse(text)
    finder.visit(tree)
    blocks = _blocks(tree, text)
    # Only the block of an edit is parsed again, because a file has hundreds of edits.
    meanings = {(begin, _meaning(text[begin:end])) for begin, end in blocks}
    for kind, start, end, after in sorted(set(finder.edits), key=lambda edit: (edit[1], edit[2], edit[3], edit[0])):
        begin, stop = next(block for block in blocks if block[0] <= start < block[1])
        try:
            mutated_block = begin, _meaning(text[begin:start] + after + text[end:stop])
        except SyntaxError:
            continue
        if mutated_block in meanings:
            continue
        meanings.add(mutated_block)
        line = text.count("\n", 0, start) + 1
        column = start - (text.rfind("\n", 0, start) + 1) + 1
        mutated = text[:start] + after + text[end:]
        yield Mutant(
            module=module, kind=kind, line=line, column=column, before=text[start:end], after=after, text=mutated
        )
