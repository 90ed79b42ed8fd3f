"""``edgedec completion``: print a script that lets a shell complete commands, options and their values.

The script contains all words, so that completing starts no process of edgedec.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import typer

from edgedec.bundle.embedded import EMBEDDED
from edgedec.cli._completion import CompletedCommand, CompletedOption, CompletedValue
from edgedec.errors import UsageError
from edgedec.host.spelling import must_be_one_of
from edgedec.plugins import names
from edgedec.quantize.methods import METHODS

__all__ = ["commands", "completion"]

_FOLDERS = ("FOLDER", "BOARD_BUNDLE")  # metavars of folders
_FILES = ("FILE", "FILE|TEXT", "PATH", "CHECKPOINT", "TEACHER")
_POOLS = ("local", "ray")
_DEVICES = (
    "cpu",
    "cuda",
    "webgpu",
    "gpu",
    "float_reference",
    "sim",
    "interpreter",
    "pynq",
    "devmem",
    "uart:",
    "replay:",
)


SHELLS = ("bash", "zsh", "fish")


def words() -> dict[str, tuple[str, ...]]:
    """Return the values of options with a list of values, by option, or by command and option."""
    from edgedec.boards import board_names

    boards = tuple(board_names())
    policies = tuple(name.replace("_", "-") for name in names("edgedec.kv.policies"))
    return {
        "--device": _DEVICES,
        "distil --device": ("auto", "cpu", "cuda"),
        "--board": boards,
        "boards show BOARD": boards,
        "--memory": ("ddr", "flat", "ideal"),
        "--configuration": ("small", "board"),
        "--kv-bits": ("16", "8", "4", "32"),
        "--kv-policy": ("full", "auto", *policies),
        "calibrate-kv --kind": policies,
        "--spec-type": tuple(names("edgedec.runtime.drafters")),
        "--spec-tree": tuple(names("edgedec.runtime.trees")),
        "--verifier": tuple(names("edgedec.runtime.verifiers")),
        "--decoder": tuple(names("edgedec.runtime.decoders")),
        "quantize --method": METHODS,
        "distil --method": ("ternary", "float"),
        "bench --method": ("ternary", "int8"),
        "--planes": ("1", "2", "3"),
        "--group-size": ("32", "64", "128"),
        "--pool": _POOLS,
        "--format": ("gguf", "onnx", "safetensors"),
        "--init": ("absmean", "planes", "random"),
        "--precision": ("auto", "float32", "bfloat16"),
        "--shape": ("bitnet-0.73b", "bitnet-2b4t", "demo"),
        "--bench": ("all", *names("edgedec.sim.verify.suites")),
        "completion SHELL": SHELLS,
        "remove NAME...": EMBEDDED,
    }


def commands(group: Any) -> list[CompletedCommand]:
    """Return the commands to complete, from typer's own tree of commands.

    Args:
        group: a click group; typer has no public name for its class.
    """
    lists = words()
    return [_command(name, command, lists) for name, command in _leaves(group)]


def _leaves(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _leaves(command, f"{before}{name} ")
        elif not command.hidden:
            yield f"{before}{name}", command


def _command(name: str, command: Any, lists: Mapping[str, tuple[str, ...]]) -> CompletedCommand:
    options, argument = [CompletedOption(names=("-h", "--help"), help="Show this message and exit.")], None
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            argument = _value(name, (_metavar(parameter),), parameter, lists)
            continue
        takes = not (parameter.is_flag or parameter.count)
        options.append(
            CompletedOption(
                names=tuple(parameter.opts),
                help=parameter.help or "",
                value=_value(name, tuple(parameter.opts), parameter, lists) if takes else None,
                repeatable=bool(parameter.multiple or parameter.count),
            )
        )
    summary = (command.help or "").strip().splitlines()
    return CompletedCommand(name=name, help=summary[0] if summary else "", options=tuple(options), argument=argument)


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _value(
    command: str, spellings: tuple[str, ...], parameter: Any, lists: Mapping[str, tuple[str, ...]]
) -> CompletedValue:
    metavar = _metavar(parameter)
    for key in (*(f"{command} {spelling}" for spelling in spellings), *spellings):
        if key in lists:
            return CompletedValue(metavar=metavar, words=lists[key], paths="files" if key == "--board" else None)
    if metavar == "BUNDLE":
        writes = "--output" in spellings
        return CompletedValue(metavar=metavar, words=() if writes else EMBEDDED, paths="folders")
    kind: Literal["files", "folders"] | None = (
        "folders" if metavar in _FOLDERS else "files" if metavar in _FILES else None
    )
    return CompletedValue(metavar=metavar, words=(), paths=kind)


def completion(
    ctx: typer.Context,
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a script that completes commands, options and values.

    For bash: eval "$(edgedec completion bash)" in ~/.bashrc; for zsh the same in ~/.zshrc, after compinit; for fish:
    edgedec completion fish > ~/.config/fish/completions/edgedec.fish
    """
    from edgedec.cli import _completion_bash, _completion_fish, _completion_zsh

    if shell not in SHELLS:
        raise UsageError(must_be_one_of("SHELL", shell, SHELLS))
    made = commands(ctx.find_root().command)
    if shell == "bash":
        print(_completion_bash.script(made))
    elif shell == "zsh":
        print(_completion_zsh.script(made))
    else:
        print(_completion_fish.script(made))
