"""Write the tables of ``docs/formats.md`` from the tables by which the readers decide.

Run ``python -m tests.quantize.readers.support.make_formats_page`` to write them; ``test_formats_page.py`` compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import gguf
import numpy as np

from edgedec.bundle import file_kinds
from edgedec.families import REFUSED
from edgedec.plugins import names
from edgedec.quantize.readers.config_keys import IGNORED_CONFIG_KEYS
from edgedec.quantize.readers.gguf import blocks, i2s, keys, models, rotation
from edgedec.quantize.readers.gguf.trits import CODES, TWO_BIT
from edgedec.quantize.readers.tokenizers import byte_tokenizer, token_settings, transformers_class

__all__ = ["PAGE", "page", "tables"]

PAGE = Path(__file__).parents[4] / "docs" / "formats.md"
_MARK = re.compile(r"(<!-- table: ([a-z ]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_USES = {"checkpoint": "opens", "weights": "opens, as a part of its folder", "archive": "refused: unpack it with `{}`"}


def _table(head: str, rows: Iterable[Iterable[str]]) -> str:
    lines = [f"| {head} |", f"|{'---|' * (head.count('|') + 1)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def _code(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values).replace("|", "\\|")


def _by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for key, reason in reasons.items():
        groups.setdefault(reason, []).append(key)
    return groups


def _kinds() -> str:
    kinds = {kind.what: kind for _, _, kind in file_kinds._MAGIC}
    uses = {
        what.split(" ", 1)[1]: _USES.get(kind.role, "refused: {}").format(kind.advice) for what, kind in kinds.items()
    }
    return _table("first bytes of | it", ((", ".join(group), use) for use, group in _by_reason(uses).items()))


def _package_decodes(kind: blocks.Kind) -> bool:
    try:
        row = np.zeros((1, kind.block_bytes), np.uint8)
        gguf.quants.dequantize(row, gguf.GGMLQuantizationType(kind.number))
    except (NotImplementedError, ValueError):
        return False
    return True


def _type_use(kind: blocks.Kind) -> str:
    if kind.name in blocks._FLOATS:
        return "as it is"
    if kind.name in blocks.INT4:
        return "int4 without loss; decoded by other methods"
    if kind.name in TWO_BIT:
        return "trits without loss; codes of +2 with `--planes 2`"
    if kind.name in CODES or kind == i2s.I2_S:
        return "trits without loss"
    if kind.name in blocks._DECODERS:
        return "decoded"
    return "decoded, with the extra `gguf`" if _package_decodes(kind) else "refused by name"


def _types() -> str:
    uses: dict[str, list[str]] = {}
    for kind in blocks.KINDS.values():
        uses.setdefault(_type_use(kind), []).append(f"{kind.name} ({kind.number})")
    return _table(
        "types, with GGML's number | how they are read", ((", ".join(them), use) for use, them in uses.items())
    )


def _architectures() -> str:
    heads = {
        "read": "read",
        "refused": "refused, as llama.cpp does",
        "left out": "left out with a note, as llama.cpp does",
    }
    groups: dict[tuple[str, str], list[str]] = {}
    for name, one in models.ARCHITECTURES.items():
        family = "" if one.model_type == name else f" (`{one.model_type}`)"
        groups.setdefault((_code(one.biases) or "none", heads[one.head]), []).append(f"`{name}`{family}")
    rows = [(", ".join(group), *how) for how, group in groups.items()]
    rows += [(_code(group), f"refused: {why}", "") for why, group in _by_reason(models._REFUSED).items()]
    return _table(
        "architecture (family, if it is another name) | biases that are read | a head of its own beside a tied one",
        rows,
    )


def _gguf_keys() -> str:
    reason_of = {f"`ARCHITECTURE.{key}`": why for key, why in keys.ARCHITECTURE_KEYS.items()}
    for key in dict.fromkeys(key for reasons in keys.TOKENIZER_KEYS.values() for key in reasons):
        reasons = {model: why[key] for model, why in keys.TOKENIZER_KEYS.items() if key in why}
        which = "" if len(reasons) == len(keys.TOKENIZER_KEYS) else f" of the model {_code(reasons)}"
        reason_of[f"`tokenizer.ggml.{key}`{which}"] = next(iter(reasons.values()))
    reason_of |= {f"`{key}*`": why for key, why in keys.GENERAL_KEYS.items()}
    return _table(
        "keys that are not used | because", ((", ".join(them), why) for why, them in _by_reason(reason_of).items())
    )


def _splits() -> str:
    groups: dict[str, list[str]] = {}
    for name, cut in byte_tokenizer.CUTS.items():
        groups.setdefault(repr(cut), []).append(name)
    rows = [("; ".join(_code(group) for group in groups.values()), "read")]
    rows += [(_code(group), f"refused: {why}") for why, group in _by_reason(byte_tokenizer.NO_CUTS).items()]
    return _table("`tokenizer.ggml.pre`; names without a semicolon between them split alike |", rows)


def _families() -> str:
    rows = [(_code(names("edgedec.families")), "opens; [which devices run it](families.md)")]
    rows += [(_code(group), f"refused: {why}") for why, group in _by_reason(REFUSED).items()]
    return _table("`model_type` | it", rows)


def _classes() -> str:
    rows = [
        (
            f"`{name}`",
            _code(f"{key}: {text}" for key, text in one.names.items() if text is not None),
            "yes" if one.own_post else "no",
        )
        for name, one in transformers_class.CLASSES.items()
    ]
    return _table("class | tokens it names if the files do not | BOS and EOS by the class alone", rows)


def _settings() -> str:
    refused = [
        f"`{key}`, unless {' or '.join(f'`{json.dumps(value)}`' for value in values)}"
        for key, values in token_settings.REFUSED_KEYS.items()
    ]
    rows = [
        ("used", _code(sorted(token_settings.USED_KEYS)) + ", and keys that end in `_token`"),
        ("refused by name", "; ".join(refused)),
        ("known to mean nothing here", _code(sorted(token_settings.IGNORED_KEYS))),
        ("not followed, with a note if it is true, for models other than BPE", _code([token_settings.NOT_FOR_BPE])),
        ("all others", "named in a note"),
    ]
    return _table("keys of `tokenizer_config.json` |", rows)


def _config_keys() -> str:
    return f"{_code(sorted(IGNORED_CONFIG_KEYS))}.\n"


def tables() -> dict[str, str]:
    """Return the Markdown of each table by the name that the page has for it."""
    return {
        "file kinds": _kinds(),
        "gguf types": _types(),
        "gguf architectures": _architectures(),
        "gguf rotations": f"{_code(rotation.SCALINGS)}.\n",
        "gguf keys": _gguf_keys(),
        "gguf splits": _splits(),
        "families": _families(),
        "tokenizer classes": _classes(),
        "tokenizer settings": _settings(),
        "configuration keys": _config_keys(),
    }


def page(text: str) -> str:
    """Return the text of the page with its tables written anew."""
    written = tables()
    found = [match[2] for match in _MARK.finditer(text)]
    assert sorted(found) == sorted(written), f"the page has the tables {found}, not {list(written)}"
    return _MARK.sub(lambda match: f"{match[1]}\n{written[match[2]]}\n{match[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
