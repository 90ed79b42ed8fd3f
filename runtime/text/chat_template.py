"""Chat templates of models: Jinja programs that run in a sandbox with limited work.

A template is part of a downloaded model and therefore an untrusted program. It has access to plain JSON data only, and can
neither loop without end nor fill the memory (see ``_Sandbox``). If a template fails, the error contains the template's own
message; no other template is used instead.

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
from types import CodeType
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

from edgedec.errors import BundleError, EdgedecError, UsageError

__all__ = [
    "OUTPUT_LIMIT_CHARACTERS",
    "SECONDS_LIMIT",
    "TEMPLATE_LIMIT_CHARACTERS",
    "WORK_LIMIT",
    "check_template",
    "render",
]

TEMPLATE_LIMIT_CHARACTERS = 1 << 20  # characters of a template
OUTPUT_LIMIT_CHARACTERS = 4 << 20  # characters of a rendered conversation
WORK_LIMIT = 64 << 20  # approximate number of bytes that a rendering may produce, including intermediate results
SECONDS_LIMIT = 10.0  # seconds of a rendering, a limit for work that is not counted, such as searches in long strings
_STEP = 64  # charge for an iteration of a loop or a call, with which a million of them are the limit
_ITEM = 32  # charge for an item of a list
_NUMBER_LIMIT_BITS = 4096  # bits of a number
_TOO_WIDE = "a field in a format is too wide, or as wide as a variable says"

_PADDING = {"ljust", "rjust", "center", "zfill", "expandtabs", "indent"}
_DROPPED_FILTERS = ("batch", "slice", "format", "pprint", "random", "urlize", "wordwrap", "xmlattr")


def render(
    template: str | None,
    messages: Sequence[Mapping[str, Any]],
    *,
    bos_token: str | None,
    eos_token: str | None,
    add_generation_prompt: bool,
    **extra: Any,
) -> str:
    """Render a conversation as text for ``Tokenizer.encode_rendered``.

    Parameters:
        template: the bundle's Jinja source; None if it has none.
        messages: ``{"role": ..., "content": ...}`` in order; JSON data.
        bos_token, eos_token: text of these tokens for the template; None is rendered as an empty text.
        add_generation_prompt: end with the text after which the model answers.
        extra: further names for the template (``tools``, ``documents``, ``enable_thinking``); JSON data.

    Raises:
        UsageError: there is no template, or the messages are not JSON data.
        BundleError: the template does not parse.
        EdgedecError: the template refuses the conversation, fails, or exceeds a limit of this module.
    """
    if template is None:
        raise UsageError("the model has no chat template; use `generate`, which continues plain text")
    names = {
        "bos_token": bos_token or "",
        "eos_token": eos_token or "",
        "add_generation_prompt": add_generation_prompt,
        "tools": None,
        "documents": None,
    }
    try:  # copy the data as plain types, so that the template gets no objects with other methods
        data = json.loads(json.dumps({**names, **extra, "messages": list(messages)}))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the messages are not JSON data ({error})") from error
    code = _compile(template)
    sandbox = _Sandbox()
    pieces, length = [], 0
    try:
        loaded = jinja2.Template.from_code(sandbox, code, sandbox.make_globals(None))
        for piece in loaded.generate(data):
            length += len(piece)
            if length > OUTPUT_LIMIT_CHARACTERS:
                raise _LimitError(f"it writes more than {OUTPUT_LIMIT_CHARACTERS:,} characters")
            pieces.append(piece)
    except _LimitError as error:
        raise EdgedecError(f"the chat template was stopped: {error}; shorten the conversation") from error
    except Exception as error:  # an untrusted program may raise anything
        raise EdgedecError(f"the chat template refused the conversation: {_message(error)}") from error
    return "".join(pieces)


def check_template(template: str) -> None:
    """Check that a template parses. It may still refuse a conversation.

    Raises:
        BundleError: it does not, or it is too long.
    """
    _compile(template)


def _message(error: Exception) -> str:
    """Return the message of an error, which is the template's own if it raised the error."""
    if isinstance(error, jinja2.TemplateError) and error.message:
        return error.message
    return f"{type(error).__name__}: {error}"


@functools.lru_cache(maxsize=8)
def _compile(template: str) -> CodeType:
    if len(template) > TEMPLATE_LIMIT_CHARACTERS:
        raise BundleError(
            f"the chat template has {len(template):,} characters, more than {TEMPLATE_LIMIT_CHARACTERS:,}; "
            "use `generate`, or put a working template in the bundle"
        )
    try:
        return _Sandbox().compile(template)
    except Exception as error:  # a syntax error, or nesting that is too deep for Jinja's or Python's compiler
        where = f" at line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise BundleError(
            f"the chat template does not parse{where}: {_message(error)}; "
            "use `generate`, or put a working template in the bundle"
        ) from error


class _LimitError(Exception):
    """A template exceeded a limit."""


class _Meter:
    """The work of one rendering, as an approximate number of bytes that it produces."""

    def __init__(self) -> None:
        self._left = WORK_LIMIT
        self._deadline = time.monotonic() + SECONDS_LIMIT

    def charge(self, amount: int) -> None:
        """Count one step that produces ``amount`` bytes."""
        self._left -= amount + _STEP
        if self._left < 0:
            raise _LimitError("it does too much work (a loop that is too long, or text that is too large)")
        if time.monotonic() > self._deadline:
            raise _LimitError(f"it takes longer than {SECONDS_LIMIT:g} s")

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


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which keeps templates from Python's internals, with a limit of work. Each rendering has its own.

    Iterations of loops, calls and filters are counted, and so are their results. Operations that can make a long result of
    short operands (``+ * ** % ~``, blocks, padding, ``replace``, ``join``, formats) are counted before they run. A list or
    mapping is counted with all its contents when it is built, so it cannot grow exponentially by containing another one
    twice. Filters that chat templates do not need and whose results could grow uncounted are removed.
    """

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constant folding would do the work during compilation, which is not counted
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
            finalize=self._written,
        )
        self.meter = _Meter()
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
            "strftime_now": _strftime_now,
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
        return self._made(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, str) and operator == "%":
            if re.search(r"%[^a-zA-Z%]*(\*|\d{5})", left):
                raise _LimitError(_TOO_WIDE)
            self.meter.charge_all(right)
        elif isinstance(left, int) and isinstance(right, int) and operator in ("*", "**"):
            bits = left.bit_length() * (right if operator == "**" else 1) + right.bit_length()
            if bits > _NUMBER_LIMIT_BITS:
                raise _LimitError(f"it makes a number of more than {_NUMBER_LIMIT_BITS:,} bits")
        elif operator == "*":
            self.meter.charge(_bytes(left) * right if isinstance(right, int) else 0)
            self.meter.charge(_bytes(right) * left if isinstance(left, int) else 0)
        elif operator == "+":
            self.meter.charge(_bytes(left) + _bytes(right))
        return super().call_binop(context, operator, left, right)

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        # Filters that need Jinja's context or environment get it as their first argument.
        at = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            head, value, rest = args[:at], args[at], args[at + 1 :]
            if name == "join":
                value = list(self._turns(value))
            self._foresee(name, value, rest, kwargs)
            return self._made(function(*head, value, *rest, **kwargs))

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
                raise _LimitError(_TOO_WIDE)
            amount = value.count("{") * sum(map(_bytes, arguments))
        elif name in ("round", "sum") and not all(isinstance(n, str | None) or _is_small(n) for n in arguments):
            raise _LimitError(f"it calls {name} with an argument that is not a small number")
        self.meter.charge(amount)

    def _made(self, value: Any) -> Any:
        self.meter.charge(_bytes(value) if isinstance(value, str | list | dict) else 0)
        return value

    def _written(self, value: Any) -> Any:
        self.meter.charge_all(value)
        return value

    def _turns(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.meter.charge(0)
            yield item

    def _joined(self, parts: Iterable[Any]) -> str:
        parts = list(parts)
        self.meter.charge_all(parts)
        return "".join(map(str, parts))

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Return the value as JSON. Jinja's own filter escapes HTML, which templates of models do not expect."""
        if isinstance(indent, int) and not _is_small(indent):
            raise _LimitError(_TOO_WIDE)
        self.meter.charge_all(value)
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


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


def _strftime_now(form: str) -> str:
    if re.search(r"\d{5}", form):
        raise _LimitError(_TOO_WIDE)
    return datetime.datetime.now().strftime(form)
