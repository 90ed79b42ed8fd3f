"""The sandbox of chat templates: what a template may do, and how much of it.

A template is part of a downloaded model and therefore an untrusted program. It has access to plain JSON data only, and can
neither loop without end nor fill the memory (see ``Sandbox``).

Source: the environment is that of transformers ``utils/chat_template_utils.py``, for which templates are written.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import string
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor

from edgedec.runtime.text.provenance import Letters, OutsideText

__all__ = ["SECONDS_LIMIT", "WORK_LIMIT", "LimitError", "Sandbox"]

WORK_LIMIT = 64 << 20  # approximate number of bytes that a rendering may produce, including intermediate results
SECONDS_LIMIT = 10.0  # seconds of a rendering, a limit for work that is not counted, such as searches in long strings
_STEP = 64  # charge for an iteration of a loop or a call, with which a million of them are the limit
_ITEM = 32  # charge for an item of a list
_NUMBER_LIMIT_BITS = 4096  # bits of a number
_TOO_WIDE = "a field in a format is too wide, or as wide as a variable says"

_NOT_ASCII = re.compile(r"[^\x00-\x7e]+")
_PADDING = {"ljust", "rjust", "center", "zfill", "expandtabs", "indent"}
_DROPPED_FILTERS = ("batch", "slice", "format", "pprint", "random", "urlize", "wordwrap", "xmlattr")


class LimitError(Exception):
    """A template exceeded a limit."""


class _Meter:
    """The work of one rendering, as an approximate number of bytes that it produces."""

    def __init__(self, work: int) -> None:
        self._left = work
        self._deadline = time.monotonic() + SECONDS_LIMIT

    def charge(self, amount: int) -> None:
        """Count one step that produces ``amount`` bytes."""
        self._left -= amount + _STEP
        if self._left < 0:
            raise LimitError("it does too much work (a loop that is too long, or text that is too large)")
        if time.monotonic() > self._deadline:
            raise LimitError(f"it takes longer than {SECONDS_LIMIT:g} s")

    def charge_all(self, value: Any) -> None:
        """Count the bytes of writing out a value. A part that occurs several times is counted each time."""
        if isinstance(value, Mapping):
            self.charge(0)
            for pair in value.items():
                self.charge_all(pair)
        elif isinstance(value, Collection) and not isinstance(value, str | range):
            self.charge(0)
            for item in value:
                self.charge_all(item)
        else:
            self.charge(len(value) if isinstance(value, str) else 0)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which keeps templates from Python's internals, with a limit of work. Each rendering has its own.

    Iterations of loops, calls and filters are counted, and so are their results. Operations that can make a long result of
    short operands (``+ * ** % ~``, blocks, padding, ``replace``, ``join``, formats) are counted before they run. A list or
    mapping is counted with all its contents when it is built, so it cannot grow exponentially by containing another one
    twice. Filters that chat templates do not need and whose results could grow uncounted are removed.

    Parameters:
        letters: the letters in which the data of the rendering has texts of others; None: it has none.
        now: the time of the rendering; None: that of the call.
        work: limit of the work, in bytes.
    """

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(
        self, letters: Letters | None = None, now: datetime.datetime | None = None, work: int = WORK_LIMIT
    ) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constant folding would do the work during compilation, which is not counted
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
            finalize=self._written,
        )
        self.meter = _Meter(work)
        self._letters = letters
        self.concat = self._joined  # type: ignore[method-assign]  # compiled code joins captured blocks by this method
        for name in _DROPPED_FILTERS:
            del self.filters[name]
        self.filters = {name: self._metered(name, function) for name, function in self.filters.items()}
        self.filters |= {
            "tojson": self._tojson,
            "_turns": self._turns,
            "_built": self._written,
            "_sliced": self._made,
            "_joined": self._joined,
        }
        del self.globals["lipsum"]
        self.globals |= {
            "dict": lambda *args, **kwargs: dict(*args, **kwargs),
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": functools.partial(_strftime_now, now),
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree: jinja2.nodes.Template = _Metering().visit(super()._parse(source, name, filename))
        return tree

    def call(self, context: jinja2.runtime.Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.meter.charge_all([args, kwargs])
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            self._foresee(method.__name__, owner, args, kwargs)
        result = super().call(context, function, *args, **kwargs)
        if isinstance(owner, str) and self._has_letters(owner, *args, *kwargs.values()):
            assert self._letters is not None
            plain = self.getattr(self._letters.plain(owner), method.__name__)
            result = self._settled(result, functools.partial(super().call, context, plain), args, kwargs)
        return self._made(result)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item of an object, or a character of a text."""
        return self._wrapped(super().getitem(obj, argument))

    def _has_letters(self, *values: Any) -> bool:
        """Return True if a value, or an item of a list, is a text in letters."""
        return self._letters is not None and any(
            isinstance(one, OutsideText)
            for value in values
            for one in (value if isinstance(value, list | tuple) else (value,))
        )

    def _settled(self, result: Any, again: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of an operation on a text in letters; ``again`` repeats it on plain texts."""
        letters = self._letters
        assert letters is not None
        return letters.settle(
            result, again(*map(letters.unwrap, args), **{k: letters.unwrap(v) for k, v in kwargs.items()})
        )

    def _wrapped(self, value: Any) -> Any:
        return value if self._letters is None else self._letters.wrap(value)

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, str) and operator == "%":
            if re.search(r"%[^a-zA-Z%]*(\*|\d{5})", left):
                raise LimitError(_TOO_WIDE)
            self.meter.charge_all(right)
        elif isinstance(left, int) and isinstance(right, int) and operator in ("*", "**"):
            bits = left.bit_length() * (right if operator == "**" else 1) + right.bit_length()
            if bits > _NUMBER_LIMIT_BITS:
                raise LimitError(f"it makes a number of more than {_NUMBER_LIMIT_BITS:,} bits")
        elif operator == "*":
            self.meter.charge(_bytes(left) * right if isinstance(right, int) else 0)
            self.meter.charge(_bytes(right) * left if isinstance(left, int) else 0)
        elif operator == "+":
            self.meter.charge(_bytes(left) + _bytes(right))
        return self._wrapped(super().call_binop(context, operator, left, right))

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        # Filters that need Jinja's context or environment get it as their first argument.
        at = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            head, value, rest = args[:at], args[at], args[at + 1 :]
            if name == "join":
                value = list(self._turns(value))
            self._foresee(name, value, rest, kwargs)
            result = function(*head, value, *rest, **kwargs)
            if isinstance(value, str) and self._has_letters(value, *rest, *kwargs.values()):
                result = self._settled(result, functools.partial(function, *head), (value, *rest), kwargs)
            return self._made(result)

        return metered

    def _foresee(self, name: str, value: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Count the largest result that a filter, or a method of a string, can make of ``value``."""
        arguments = [*args, *kwargs.values()]
        amount = 0
        if name in _PADDING:
            amount = (_bytes(value) + 1) * max((n for n in arguments if isinstance(n, int)), default=8)
        elif name == "replace" and len(arguments) > 1:
            amount = (_bytes(value) + 1) * _bytes(arguments[1])
        elif name == "join":
            if isinstance(value, str):
                parts, separator = arguments[0], value
            else:
                parts, separator = value, "".join(map(str, arguments[:1]))
            self.meter.charge_all(parts)
            amount = _bytes(parts) * len(separator)
        elif name in ("format", "format_map"):
            specs = [spec for _, _, spec, _ in string.Formatter().parse(value) if spec]
            if any(re.search(r"\{|\d{5}", spec) for spec in specs):
                raise LimitError(_TOO_WIDE)
            amount = value.count("{") * sum(map(_bytes, arguments))
        elif name in ("round", "sum") and not all(isinstance(n, str | None) or _is_small(n) for n in arguments):
            raise LimitError(f"it calls {name} with an argument that is not a small number")
        self.meter.charge(amount)

    def _made(self, value: Any) -> Any:
        self.meter.charge(_bytes(value) if isinstance(value, str | list | dict) else 0)
        return self._wrapped(value)

    def _written(self, value: Any) -> Any:
        self.meter.charge_all(value)
        return value

    def _turns(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.meter.charge(0)
            yield self._wrapped(item)

    def _joined(self, parts: Iterable[Any]) -> Any:
        parts = list(parts)
        self.meter.charge_all(parts)
        return self._wrapped("".join(map(str, parts)))

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> Any:
        """Return the value as JSON. Jinja's own filter escapes HTML, which templates of models do not expect."""
        if isinstance(indent, int) and not _is_small(indent):
            raise LimitError(_TOO_WIDE)
        self.meter.charge_all(value)
        text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
        if ensure_ascii:
            plain = text if self._letters is None else self._letters.plain(text)
            text = _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], plain)
            return text if self._letters is None else self._letters.text(text)
        return self._wrapped(text)


def _bytes(value: Any) -> int:
    """Return the approximate size of a shallow copy."""
    if isinstance(value, str):
        return len(value)
    return _ITEM * len(value) if isinstance(value, Sized) else 0


def _is_small(number: Any) -> bool:
    return isinstance(number, int | float) and abs(number) <= 64


class _Metering(jinja2.visitor.NodeTransformer):
    """A transformation of the syntax tree that adds counting where Jinja has no hook."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:  # noqa: N802  # Jinja derives the name from the class
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_turns")
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(jinja2.nodes.List(node.nodes, lineno=node.lineno), "_joined")

    def _visit_built(self, node: jinja2.nodes.Expr) -> jinja2.nodes.Node:
        self.generic_visit(node)
        target = getattr(node, "ctx", "load") == "store"  # the left side of an assignment
        return node if target else _filtered(node, "_built")

    visit_List = visit_Dict = visit_Tuple = _visit_built  # noqa: N815

    def visit_Getitem(self, node: jinja2.nodes.Getitem) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "_sliced") if isinstance(node.arg, jinja2.nodes.Slice) else node


def _filtered(value: jinja2.nodes.Node, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


class _GenerationBlock(jinja2.ext.Extension):
    """The block ``{% generation %}``, which marks the assistant's words for training. Here it only groups."""

    tags = {"generation"}  # noqa: RUF012  # Jinja requires this name and type

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class _Namespace(jinja2.utils.Namespace):
    """A namespace without names that begin with an underscore: ``__call__`` on a namespace would escape the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that a template may store ``self``
        namespace, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_public(name)
        jinja2.utils.Namespace.__init__(namespace, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:  # Jinja's own writes out the contents, which are not counted
        return "<namespace>"


def _check_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}, which begins with an underscore")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(now: datetime.datetime | None, form: str) -> str:
    if re.search(r"\d{5}", form):
        raise LimitError(_TOO_WIDE)
    return (now or datetime.datetime.now()).strftime(form)
