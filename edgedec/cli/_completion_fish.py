"""The completion script for fish."""

from __future__ import annotations

from edgedec.cli._completion import CompletedCommand, CompletedOption, CompletedValue

__all__ = ["script"]

_FOLDERS = "(__fish_complete_directories (commandline -ct))"


def script(commands: list[CompletedCommand]) -> str:
    """Return the script."""
    lines = [
        "# fish completion for edgedec",
        "complete -c edgedec -f",
        "complete -c edgedec -n __fish_use_subcommand -l version",
    ]
    first = {command.name.partition(" ")[0]: command.help for command in reversed(commands)}
    for name in sorted(first):
        lines.append(f"complete -c edgedec -n __fish_use_subcommand -a {name} -d {_quote(first[name])}")
    for command in commands:
        group, _, member = command.name.partition(" ")
        seen = f"__fish_seen_subcommand_from {group}"
        if member:
            condition = _quote(f"{seen}; and not __fish_seen_subcommand_from {_members(commands, group)}")
            lines.append(f"complete -c edgedec -n {condition} -a {member} -d {_quote(command.help)}")
            seen += f"; and __fish_seen_subcommand_from {member}"
        lines += [f"complete -c edgedec -n {_quote(seen)} {_option(option)}" for option in command.options]
        if command.argument is not None and (takes := _takes(command.argument, "-F")):
            lines.append(f"complete -c edgedec -n {_quote(seen)} {takes}")
    return "\n".join(lines)


def _members(commands: list[CompletedCommand], group: str) -> str:
    return " ".join(command.name.split()[1] for command in commands if command.name.startswith(f"{group} "))


def _option(option: CompletedOption) -> str:
    spellings = []
    for name in option.names:
        bare = name.lstrip("-")
        kind = "-l" if name.startswith("--") else "-s" if len(bare) == 1 else "-o"
        spellings.append(f"{kind} {bare}")
    value = "" if option.value is None else " " + (_takes(option.value, "-r -F", "-x") or "-x")
    return f"{' '.join(spellings)}{value} -d {_quote(option.help)}"


def _takes(value: CompletedValue, files: str, words: str = "") -> str:
    """Return fish's flags and words for a value: ``files`` if it may be a file, ``words`` if only offered words fit."""
    offered = list(value.words)
    if value.paths == "folders":
        offered.append(_FOLDERS)
    flags = [files if value.paths == "files" else words] if offered or value.paths == "files" else []
    return " ".join([*filter(None, flags), *([f"-a {_quote(' '.join(offered))}"] if offered else [])])


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
