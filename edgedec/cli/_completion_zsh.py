"""The completion script for zsh."""

from __future__ import annotations

from shlex import quote

from edgedec.cli._completion import CompletedCommand, CompletedOption, CompletedValue

__all__ = ["script"]


def script(commands: list[CompletedCommand]) -> str:
    """Return the script, for a file ``_edgedec`` in fpath or for eval after compinit."""
    first = {command.name.partition(" ")[0]: command.help for command in reversed(commands)}
    lines = ["#compdef edgedec", "", "_edgedec() {"]
    lines += _describe("CURRENT == 2", {name: first[name] for name in sorted(first)})
    lines += ["    local command=$words[2]", "    shift words", "    (( CURRENT-- ))"]
    for name in first:
        members = {c.name.split()[1]: c.help for c in commands if c.name.startswith(f"{name} ")}
        if members:
            lines += [f"    if [[ $command == {name} ]]; then"]
            lines += ["    " + line for line in _describe("CURRENT == 2", members)]
            lines += [
                '        command="$command $words[2]"',
                "        shift words",
                "        (( CURRENT-- ))",
                "    fi",
            ]
    lines += ['    case "$command" in']
    for command in commands:
        lines += [f"    {quote(command.name)})", "        _arguments -S \\"]
        specs = [_option(option) for option in command.options]
        if command.argument is not None:
            specs.append(quote(f"*{_action(command.argument)}"))
        lines += [f"            {spec} \\" for spec in specs[:-1]] + [f"            {specs[-1]}", "        ;;"]
    lines += ["    esac", "}", ""]
    lines += [
        'if [[ "$funcstack[1]" == _edgedec ]]; then',
        '    _edgedec "$@"',
        "else",
        "    compdef _edgedec edgedec",
        "fi",
    ]
    return "\n".join(lines)


def _describe(condition: str, words: dict[str, str]) -> list[str]:
    described = " ".join(quote(f"{name}:{text}") for name, text in words.items())
    return [
        f"    if (( {condition} )); then",
        f"        local -a offered=({described})",
        "        _describe command offered",
        "        return",
        "    fi",
    ]


def _option(option: CompletedOption) -> str:
    text = option.help.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    action = "" if option.value is None else _action(option.value)
    others = "*" if option.repeatable else f"({' '.join(option.names)})"
    specs = [quote(f"{others}{name}[{text}]{action}") for name in option.names]
    return " ".join(specs)


def _action(value: CompletedValue) -> str:
    """Return ``:message:action``. Colons of words are escaped, because they separate these."""
    words = " ".join(value.words).replace(":", "\\:")
    files = {"files": "_files", "folders": "_files -/", None: ""}[value.paths]
    message = value.metavar.replace(":", "\\:").replace("[", "\\[").replace("]", "\\]")
    if value.words and files:
        return f":{message}:{{_alternative 'names\\:name\\:({words})' 'paths\\:path\\:{files}'}}"
    return f":{message}:({words})" if words else f":{message}:{files or ' '}"
