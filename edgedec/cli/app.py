"""The command ``edgedec``: its sub-commands, and the handling of their errors."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer

from edgedec import __version__
from edgedec.cli._collection import collect_rarely
from edgedec.cli._commands import LazyGroup
from edgedec.cli._origins import check_variables, named_by_variable
from edgedec.cli._streams import OutputError, discard_output, guard
from edgedec.cli.config import load_defaults
from edgedec.cli.options import option
from edgedec.environment import DEBUG
from edgedec.errors import EdgedecError, UsageError

__all__ = ["app", "main"]

_SIGNALLED = 128  # exit code of a signal, minus the signal's number, as in shells
INTERRUPTED = _SIGNALLED + signal.SIGINT
NOBODY_READS = _SIGNALLED + 13  # exit code of SIGPIPE, a signal that has no name on Windows


class _Commands(LazyGroup):
    """Convert deliberate errors to one message and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            print(f"edgedec: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from error

    def invoke(self, ctx: Any) -> Any:  # typer contains its own click, whose Context has no public name
        if hasattr(sys.stdout, "reconfigure") and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character must not end a generation
        try:
            with _ended_by_signals():
                result = super().invoke(ctx)
            sys.stdout.flush()
        except EdgedecError as error:
            print(f"edgedec: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error
        except typer.BadParameter as error:
            named = named_by_variable(error)
            if named is None:
                raise
            print(f"edgedec: {named}", file=sys.stderr)
            raise typer.Exit(named.exit_code) from error
        return result


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C: a command ends its child processes and removes incomplete files.

    Signals that are ignored (``nohup``) stay ignored. After a signal, all of them are ignored until Python has ended.
    """
    numbers = [signal.SIGTERM, *([] if sys.platform == "win32" else [signal.SIGHUP])]
    heard = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, frame: object) -> NoReturn:
        for other in heard:
            signal.signal(other, signal.SIG_IGN)  # a second signal must not disturb the clean-up
        sys.exit(_SIGNALLED + number)

    if threading.current_thread() is not threading.main_thread():  # other threads may not set handlers
        heard.clear()
    for number in heard:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heard:
            if signal.getsignal(number) is end:
                signal.signal(number, signal.SIG_DFL)


# Help and messages are plain, because boxes would break paths in the middle.
app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Every option can be set by an environment variable, EDGEDEC_<COMMAND>_<OPTION>, and in edgedec.toml.",
    context_settings={"auto_envvar_prefix": "EDGEDEC", "help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        print(f"edgedec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool,
        option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version, allow_from_autoenv=False
        ),
    ] = False,
) -> None:
    """Quantize a language model, and run it within a memory budget in bytes."""
    group = ctx.command
    assert isinstance(group, LazyGroup)
    check_variables(group.commands)
    ctx.default_map = load_defaults(ctx, group.commands)


def main() -> None:
    """Run the command line. docs/command-line.md lists the exit codes."""
    guard()
    collect_rarely()
    code = 0
    try:
        try:
            app(prog_name="edgedec")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception as error:
            if isinstance(error, OutputError) or _wants_traceback():
                raise
            text = " ".join(str(error).split())
            print(f"edgedec: unexpected {type(error).__name__}: {text}", file=sys.stderr)
            print("edgedec: this is a bug of edgedec; set EDGEDEC_DEBUG=1 to see the traceback", file=sys.stderr)
            code = 1
        sys.stdout.flush()
    except OutputError as lost:
        discard_output()
        if not lost.nobody_reads:
            print(f"edgedec: {lost}", file=sys.stderr)
        code = code or (NOBODY_READS if lost.nobody_reads else 1)
    sys.exit(code)


def _wants_traceback() -> bool:
    try:
        return DEBUG.is_on()
    except UsageError:  # the variable's value is wrong, but the present error is more important
        return False
