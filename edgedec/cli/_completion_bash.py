"""The completion script for bash 3.2 and later."""

from __future__ import annotations

from shlex import quote

from edgedec.cli._completion import CompletedCommand, CompletedValue

__all__ = ["script"]

_HEAD = r"""# bash completion for edgedec

_edgedec_words() {
    local word
    while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -W "$1" -- "$cur")
}

_edgedec_paths() {  # compgen's letter: f files and folders, d folders
    local path
    compopt -o filenames 2>/dev/null
    while IFS= read -r path; do COMPREPLY+=("$path"); done < <(compgen -"$1" -- "$cur")
}

_edgedec() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}
    COMPREPLY=()
    if [ "$cur" = = ]; then
        cur=
    elif [ "$prev" = = ]; then
        prev=${COMP_WORDS[COMP_CWORD-2]}
    fi"""

_TAIL = r"""}

complete -F _edgedec edgedec"""


def script(commands: list[CompletedCommand]) -> str:
    """Return the script."""
    first = list(dict.fromkeys(command.name.partition(" ")[0] for command in commands))
    groups = {name: [c.name.split()[1] for c in commands if c.name.startswith(f"{name} ")] for name in first}
    lines = [_HEAD]
    lines += _offer_if("$COMP_CWORD -eq 1", [*first, "--help", "--version"])
    for name, members in groups.items():
        if members:
            lines += [f'    if [ "$command" = {name} ]; then']
            lines += ["    " + line for line in _offer_if("$COMP_CWORD -eq 2", [*members, "--help"])]
            lines += ['        command="$command ${COMP_WORDS[2]}"', "    fi"]
    lines += ['    case "$command" in']
    for command in commands:
        lines += [f"    {quote(command.name)})", *("        " + line for line in _body(command)), "        ;;"]
    return "\n".join([*lines, "    esac", _TAIL])


def _offer_if(condition: str, words: list[str]) -> list[str]:
    return [
        f"    if [ {condition} ]; then",
        f"        _edgedec_words {quote(' '.join(words))}",
        "        return",
        "    fi",
    ]


def _body(command: CompletedCommand) -> list[str]:
    lines = ['case "$prev" in']
    for option in command.options:
        if option.value is not None:
            offers = "; ".join([*_offers(option.value), "return"])
            lines.append(f"{'|'.join(option.names)}) {offers} ;;")
    every = " ".join(name for option in command.options for name in option.names)
    lines += ["esac", 'case "$cur" in', f"-*) _edgedec_words {quote(every)} ;;"]
    if command.argument is not None:
        lines.append(f"*) {'; '.join(_offers(command.argument)) or ':'} ;;")
    return [*lines, "esac"]


def _offers(value: CompletedValue) -> list[str]:
    offers = [f"_edgedec_words {quote(' '.join(value.words))}"] if value.words else []
    if value.paths is not None:
        offers.append(f"_edgedec_paths {'f' if value.paths == 'files' else 'd'}")
    return offers
