"""Read the chat templates of a folder, and write them as the one Jinja program that a bundle holds.

A folder may name several templates, of which transformers takes ``tool_use`` if there are tools and ``default`` otherwise,
and a template may use any token that the tokenizer names (``pad_token``). A bundle's template decides and names them itself,
so that every program that renders it does the same.

Source: ``get_chat_template`` and ``apply_chat_template`` of transformers 5.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.untrusted import MAX_JSON_BYTES, member, read_object, read_text, shown

__all__ = ["compose", "folder_templates"]

log = logging.getLogger(__name__)

_DEFAULT, _TOOLS = "default", "tool_use"
_MORE = "additional_chat_templates"  # folder of named templates, one file each
_LAST_LINE_END = re.compile(r"(?:\r\n|\r|\n)\Z")


def folder_templates(home: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates of a folder by their names; one without a name is ``default``.

    Files ``*.jinja`` replace those of ``chat_template.json``, and these replace those of ``tokenizer_config.json``
    (``settings``).

    Raises:
        BundleError: a template is not text, or a file cannot be read.
    """
    files = {_DEFAULT: member(home, "chat_template.jinja")}
    folder = member(home, _MORE)
    if folder is not None and folder.is_dir():
        files |= {path.stem: member(home, f"{_MORE}/{path.name}") for path in sorted(folder.glob("*.jinja"))}
    found = {name: read_text(path, MAX_JSON_BYTES) for name, path in files.items() if path is not None}
    if found:
        return found
    where, value = home / "tokenizer_config.json", settings.get("chat_template")
    separate = member(home, "chat_template.json")
    if separate is not None:
        stated = value
        where, value = separate, read_object(separate).get("chat_template")
        if stated not in (None, value):
            log.warning("%s: replaces the chat template of tokenizer_config.json, unlike in AutoTokenizer", separate)
    if value is None:
        return {}
    pairs: list[Any] = [(_DEFAULT, value)]
    if isinstance(value, list | dict):
        items = value.items() if isinstance(value, dict) else value
        pairs = [(item.get("name"), item.get("template")) if isinstance(item, dict) else item for item in items]
    if not pairs or not all(isinstance(pair, tuple) and all(isinstance(one, str) for one in pair) for pair in pairs):
        raise BundleError(f"{where}: chat_template must be text, or texts with names, not {shown(value)}")
    return dict(pairs)


def compose(
    source: Path, templates: Mapping[str, str], names: Mapping[str, str], given: Mapping[str, str]
) -> str | None:
    """Return one Jinja program that renders what transformers renders with these templates; None if there is none.

    For ``{"default": "D"}`` and no names that is "D" itself.

    Args:
        source: folder or file, for messages.
        templates: sources by name.
        names: texts of the tokens that templates may use (``pad_token``, ``eos_token``).
        given: ``bos_token`` and ``eos_token`` as the bundle's reader will name them; only others are set by the program.

    Raises:
        UnsupportedError: no template is named "default" or "tool_use".
    """
    if not templates:
        return None
    left_out = sorted(templates.keys() - {_DEFAULT, _TOOLS})
    if len(left_out) == len(templates):
        raise UnsupportedError(
            f'{source}: no chat template is named "default", only {", ".join(map(shown, left_out))}; rename the one to use'
        )
    if left_out:
        log.warning(
            "%s: the chat templates %s are left out; the default is taken", source, ", ".join(map(shown, left_out))
        )
    default, tools = templates.get(_DEFAULT), templates.get(_TOOLS)
    if tools is None:
        assert default is not None
        program = default
    else:
        default = (
            '{{ raise_exception("the model has a chat template for tools only") }}' if default is None else default
        )
        # The line ends after the tags are dropped (trim_blocks), and let each template begin at the start of a line. The
        # empty expressions keep the spaces at its end (lstrip_blocks).
        program = (
            f"{{% if tools is not none %}}\n{_without_line_end(tools)}{{{{ '' }}}}{{% else %}}\n"
            f"{_without_line_end(default)}{{{{ '' }}}}{{% endif %}}"
        )
    texts = {**dict.fromkeys(given, ""), **names}
    used = [name for name in texts if texts[name] != given.get(name) and re.search(rf"\b{re.escape(name)}\b", program)]
    return "".join(f"{{% set {name} = {_literal(texts[name])} %}}\n" for name in used if name.isidentifier()) + program


def _without_line_end(template: str) -> str:
    """Return a template without the line end that Jinja drops at the end of a program."""
    return _LAST_LINE_END.sub("", template)


def _literal(text: str) -> str:
    """Return a text as a string of Jinja, in which characters beyond ASCII may stand."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
