"""The commands of ``edgedec`` by name. Each is imported from its module when it is first used."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, MutableMapping
from importlib import import_module
from typing import Any

import typer

from edgedec.cli._origins import OriginCommand
from edgedec.cli._plain_values import read_plain_values
from edgedec.cli._spelling_check import SpelledGroup

__all__ = ["COMMANDS", "LazyCommands", "LazyGroup"]

# Name of a command -> module in edgedec.cli and its function, or its group of commands. The help has this order.
COMMANDS = {
    "quantize": "quantize:quantize",
    "export": "export:export",
    "distil": "distil:distil",
    "calibrate-kv": "calibrate_kv:calibrate_kv",
    "borrow": "borrow:borrow",
    "inspect": "inspect:inspect",
    "plan": "plan:plan",
    "generate": "generate:generate",
    "chat": "chat:chat",
    "serve": "serve:serve",
    "batch": "batch:batch",
    "bench": "bench:bench",
    "eval": "eval:eval_command",
    "simulate": "simulate:simulate",
    "build-bitstream": "build_bitstream:build_bitstream",
    "deploy": "deploy:deploy",
    "list": "bundles:list_bundles",
    "remove": "bundles:remove",
    "doctor": "doctor:doctor",
    "completion": "completion:completion",
    "boards": "boards:boards",
}


class LazyCommands(MutableMapping[str, Any]):
    """A mapping from names to commands, which are imported and made on first use.

    Typer would import all of them to make one: 17 modules with 250 options.
    """

    def __init__(self, places: dict[str, str]) -> None:
        self._places, self._made = dict(places), dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            module, _, member = self._places[name].partition(":")
            self._made[name] = _command(name, getattr(import_module(f"edgedec.cli.{module}"), member))
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._places.setdefault(name, "")
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._places[name]
        self._made.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class LazyGroup(SpelledGroup):
    """The group of all commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = LazyCommands(COMMANDS)

    def get_help_option(self, ctx: Any) -> Any:
        help_option = super().get_help_option(ctx)
        read_plain_values(help_option)
        return help_option


@functools.cache
def _command(name: str, body: Callable[..., None] | typer.Typer) -> Any:
    """Return the command of a function, or a group of commands; typer has no public name for their common class.

    A command is made once for a process, because reading the types of its options takes some 10 ms.
    """
    # Help and messages are plain, because boxes would break paths in the middle.
    holder = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    if isinstance(body, typer.Typer):
        holder.add_typer(body, name=name)
        return typer.main.get_group(holder).commands[name]
    holder.command(name, cls=OriginCommand)(body)
    return typer.main.get_command(holder)
