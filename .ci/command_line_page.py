"""Write the tables of options in docs/command-line.md from the options themselves; a test compares them.

A block of the page begins with the line ``<!-- options: NAME -->`` and ends with ``<!-- end of options -->``. NAME is a
command, whose block has the options of its own, or a group of ``SHARED``, whose block also says which commands have each
option. Text that does not fit the help of an option, such as a link, stands below the block and is not written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from edgedec.cli.app import app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "command-line.md"
# Group of options that several commands share -> the names of their parameters, in the order of the table.
SHARED: Mapping[str, Sequence[str]] = {
    "of several commands": (
        *(
            "model",
            "device",
            "threads",
            "ctx_size",
            "kv_bits",
            "cache_type_k",
            "cache_type_v",
            "kv_policy",
            "value_rows",
        ),
        *("memory_budget", "verify", "json", "verbose"),
    ),
    "of speculation": (*("spec_type", "model_draft", "draft_max", "spec_tree", "tree_nodes", "verifier", "decoder"),),
    "of an accelerator": ("board", "configuration", "memory", "record"),
    "of texts": (
        *("n_predict", "temp", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty"),
        *("repeat_last_n", "logit_bias", "seed", "system", "system_file", "chat_template", "chat_template_file"),
        *("reverse_prompt", "ignore_eos", "sanitize_control_tokens", "show_draft"),
    ),
}
HEAD = "| option | default | meaning |"
FEW = 3  # most commands that are listed after "all but"
_BLOCK = re.compile(
    r"(?<=^<!-- options: )(?P<name>[^\n]+)(?P<mark> -->\n)(?P<body>.*?)(?=^<!-- end of options -->$)", re.M | re.S
)


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name of each command of a group, such as ``boards list``, with the command."""
    for key, command in group.commands.items():
        full = f"{name} {key}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, full)
        else:
            yield full, command


def default(options: Iterable[Any]) -> str:
    """Return the default of an option, empty if it has none, or if it differs from command to command."""
    shown = set()
    for option in options:
        value = option.default
        if option.required:
            shown.add("required")
        elif isinstance(value, bool):
            shown.add("on" if value else "off")
        elif isinstance(option.show_default, str):  # a default that follows from other options
            shown.add(f"`{option.show_default}`")
        elif value is None or value == "" or option.show_default is False:
            shown.add("")
        else:
            shown.add(
                f"{value:g}" if isinstance(value, float) else f"`{value}`" if isinstance(value, str) else str(value)
            )
    return shown.pop() if len(shown) == 1 else ""


def row(options: Sequence[Any]) -> str:
    """Return three cells for an option as several commands have it: ``-c``, ``--ctx-size N``, its default, its help."""
    option = options[0]
    value = "" if option.metavar is None else f" {option.metavar}"
    own = f"--{option.name.replace('_', '-')}"
    names = [f"`{name}{value if name == own else ''}`" for name in (*option.opts, *option.secondary_opts)]
    cells = (
        ", ".join(names).replace("|", "\\|"),
        default(options),
        option.help.replace("|", "\\|").replace("<", "&lt;"),
    )
    return f"| {' | '.join(cells)} |"


def which(names: Sequence[str], usual: Sequence[str], everyone: Sequence[str]) -> str:
    """Return the commands that have an option, relative to those that usually have the options of its table."""
    more, less = [name for name in names if name not in usual], [name for name in usual if name not in names]
    others = [name for name in everyone if name not in names]
    word, listed = ("", names) if more and less else ("also ", more) if more else ("not ", less)
    if more and len(others) <= FEW:
        word, listed = "all but ", others
    return word * bool(listed) + ", ".join(f"`{name}`" for name in listed)


def shared_table(members: Sequence[str], having: Mapping[str, dict[str, Any]], everyone: Sequence[str]) -> str:
    """Return the table of a group of ``SHARED``, and remove from ``having`` the options that it describes.

    An option whose help is another one in some command is described with that command.
    """
    rows = []
    for member in members:
        usual = Counter(option.help for option in having[member].values()).most_common(1)[0][0]
        names = [name for name, option in having[member].items() if option.help == usual]
        rows.append((names, [having[member].pop(name) for name in names]))
    most = Counter(tuple(names) for names, _ in rows).most_common(1)[0][0]
    listed = ", ".join(f"`{name}`" for name in most)
    lines = [f"For {listed}, if the last column says nothing else.", "", f"{HEAD} commands |", "|---|---|---|---|"]
    return "\n".join(lines + [f"{row(options)} {which(names, most, everyone)} |" for names, options in rows]) + "\n"


def tables(group: Any) -> dict[str, str]:
    """Return the contents of the blocks: one for each group of ``SHARED``, and one for each command with more options."""
    everyone = dict(commands(group))
    having: dict[str, dict[str, Any]] = {}
    for name, command in everyone.items():
        for option in command.params:
            if option.param_type_name == "option" and not option.hidden:
                having.setdefault(option.name, {})[name] = option
    found = {block: shared_table(members, having, list(everyone)) for block, members in SHARED.items()}
    for name, command in everyone.items():
        own = [row([having[option.name][name]]) for option in command.params if name in having.get(option.name, {})]
        if own:
            found[name] = "\n".join([HEAD, "|---|---|---|", *own]) + "\n"
    return found


def written(page: str, contents: Mapping[str, str]) -> str:
    """Return a page with the contents of its blocks.

    Raises:
        ValueError: the page lacks a block, has one twice, or has one that is unknown.
    """
    names = Counter(match["name"] for match in _BLOCK.finditer(page))
    if differing := (names - Counter(contents.keys())) + (Counter(contents.keys()) - names):
        raise ValueError(f"the page must have each block of options once; look at {', '.join(sorted(differing))}")
    return _BLOCK.sub(lambda match: match["name"] + match["mark"] + contents[match["name"]], page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8"), tables(typer.main.get_command(app))), "utf-8")
