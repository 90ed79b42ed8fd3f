"""The model card of a bundle: ``README.md``, which tells people what the model is, where it is from, and how it was made.

The card is bound by the manifest like every other file. It is a function of the checkpoint and the options, so that the same
command makes the same bundle: it has no time, no path and no name of a machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgedec import __version__
from edgedec.bundle.atomic import new_file
from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import KV_PERPLEXITY, MANIFEST, encode_manifest
from edgedec.errors import BundleError, EdgedecError
from edgedec.memory.byte_sizes import format_bytes
from edgedec.quantize.provenance import README, Provenance

__all__ = ["CardFacts", "add_card", "card_text"]

_CUT = 200  # characters of a stranger's text


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """The facts that a card has beside those of the manifest.

    Members:
        origin: the statements of the checkpoint about itself.
        command: the command that makes the bundle again.
        stored_bytes: bytes of all tensors.
        perplexity_before, perplexity_after: perplexity of the checkpoint and of the bundle; None: not measured.
        scored: number of tokens of which the perplexities are means.
        text: description of the text that was scored.
        kv_perplexity: bits of keys and values -> perplexity over that with the usual bits; empty: not measured.
    """

    origin: Provenance
    command: str
    stored_bytes: int
    perplexity_before: float | None = None
    perplexity_after: float | None = None
    scored: int = 0
    text: str = ""
    kv_perplexity: Mapping[str, float] = field(default_factory=dict)


def add_card(path: Path, facts: CardFacts) -> None:
    """Write the card of a bundle, and bind it by the bundle's manifest, which has ``facts.kv_perplexity`` from then on.

    The card is written first, when readers ignore it, and the manifest that lists it then replaces the other in one step: a
    reader sees a whole bundle at every moment.

    Raises:
        BundleError: the bundle is damaged, or has such a file already.
        EdgedecError: the disk is full, or permission is missing.
    """
    bundle = Bundle.open(path, weights=False)
    content: dict[str, Any] = json.loads((path / MANIFEST).read_bytes())
    if content["sha256"] != bundle.sha256 or README in content["files"]:
        raise BundleError(f"{path}: has changed since it was written; quantize the checkpoint again")
    data = card_text(bundle, facts).encode("utf-8")
    if facts.kv_perplexity:
        # Code paths of a processor differ in the last digits.
        content["quantization"][KV_PERPLEXITY] = {bits: round(ratio, 4) for bits, ratio in facts.kv_perplexity.items()}
    content["files"][README] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    kept = {key: value for key, value in content.items() if key not in ("format", "version", "sha256")}
    try:
        for name, written in ((README, data), (MANIFEST, encode_manifest(kept))):
            with new_file(path / name, follow=False) as file:
                file.write_bytes(written)
    except (EdgedecError, OSError) as error:
        (path / README).unlink(missing_ok=True)
        raise EdgedecError(f"{error}; the bundle is complete without its model card") from None
    Bundle.open(path, weights=False)  # reads both back


def card_text(bundle: Bundle, facts: CardFacts) -> str:
    """Return the card: YAML front matter as model hubs read it, and Markdown."""
    return "\n".join([*_front_matter(bundle, facts), *_body(bundle, facts), ""])


def _front_matter(bundle: Bundle, facts: CardFacts) -> Iterator[str]:
    """Yield the lines. Every value is a string in JSON, which is one in YAML."""
    origin = facts.origin
    tags = ["edgedec", str(bundle.config.get("model_type", "")), str(bundle.quantization.get("method", ""))]
    yield "---"
    yield "library_name: edgedec"
    yield "pipeline_tag: text-generation"
    yield from _entry("license", origin.license or ("unknown",))
    yield from _entry("license_name", origin.license_name)
    yield from _entry("license_link", origin.license_link)
    yield from _entry("base_model", (origin.name,))
    yield "base_model_relation: quantized"
    yield from _entry("tags", tuple(dict.fromkeys(_plain(tag) for tag in tags if tag)), as_list=True)
    yield "---"


def _entry(key: str, values: Sequence[str], *, as_list: bool = False) -> Iterator[str]:
    if len(values) == 1 and not as_list:
        yield f"{key}: {_quoted(values[0])}"
    elif values:
        yield f"{key}:"
        yield from (f"- {_quoted(value)}" for value in values)


def _body(bundle: Bundle, facts: CardFacts) -> Iterator[str]:
    origin = facts.origin
    yield f"# {_code(origin.name)} for edgedec"
    yield ""
    yield "This folder is a bundle of edgedec. `manifest.json` has the hashes of all its files, this one's too."
    yield ""
    yield from _table(["", ""], _rows(bundle, facts))
    yield ""
    yield "## Running it"
    yield ""
    yield "    edgedec generate -m BUNDLE -p 'Once upon a time'"
    yield "    edgedec serve -m BUNDLE"
    yield ""
    yield "## Making it again"
    yield ""
    yield f"    {_one_line(facts.command)}"
    yield ""
    yield "## Licence"
    yield ""
    yield from _licence(origin)
    yield ""
    yield "## Files of the checkpoint"
    yield ""
    rows = [(_code(file.name), f"{file.nbytes}", f"`{file.sha256}`") for file in origin.files]
    yield from _table(["file", "bytes", "SHA-256"], rows)
    if origin.unread:
        yield ""
        yield "What the checkpoint says and this card leaves out:"
        yield ""
        yield from (f"- {_code(reason)}" for reason in origin.unread)


def _rows(bundle: Bundle, facts: CardFacts) -> Iterator[tuple[str, str]]:
    made = bundle.quantization
    yield "checkpoint", _code(facts.origin.name)
    if facts.origin.base_model:
        yield "made from, as the checkpoint says", ", ".join(map(_code, facts.origin.base_model))
    yield "family", _code(str(bundle.config.get("model_type")))
    planes = f", {made['planes']} planes{', tied' if made.get('tied') else ''}" if made.get("planes") else ""
    groups = f", groups of {made['group_size']}" if made.get("group_size") else ""
    yield "method", f"{made['method']}{planes}{groups}"
    if made.get("calibration_tokens"):
        yield "calibration", f"{made['calibration_tokens']} tokens"
    yield "parameters", f"{made['parameters']:,}"
    yield "bits per weight", f"{made['bits_per_weight']:.2f}"
    yield "size", f"{format_bytes(facts.stored_bytes)} ({facts.stored_bytes:,} bytes of tensors)"
    before, after = facts.perplexity_before, facts.perplexity_after
    if before is None or after is None:
        yield "perplexity", "not measured"
    else:
        yield "perplexity of the checkpoint", f"{before:.4f}"
        yield "perplexity of the bundle", f"{after:.4f} ({100 * (after / before - 1):+.2f} %)"
        for bits, ratio in facts.kv_perplexity.items():
            yield f"the same with keys and values of {bits} bits", f"{100 * (ratio - 1):+.2f} %"
        yield "scored text", f"{_escaped(facts.text)}, {facts.scored:,} tokens"
    yield "written by", f"edgedec {__version__}"


def _licence(origin: Provenance) -> Iterator[str]:
    if origin.license:
        yield f"The checkpoint says: {', '.join(map(_code, (*origin.license, *origin.license_name)))}."
    else:
        yield "The checkpoint names no licence that could be read. Find out under which terms you may use it."
    yield from (f"Its text is at {_code(link)}." for link in origin.license_link)
    if origin.terms:
        yield "These files of the checkpoint have terms; the bundle does not hold them:"
        yield ""
        yield from (f"- {_code(name)}, which begins {_code(line or ' ')}" for name, line in origin.terms.items())


def _table(head: Sequence[str], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _plain(text: str) -> str:
    """Return a text on one line, without control characters and what turns the direction of text, and not too long."""
    return "".join(one if one.isprintable() else "?" for one in text[:_CUT]) + ("..." if len(text) > _CUT else "")


def _one_line(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text)


def _quoted(text: str) -> str:
    return json.dumps(_plain(text), ensure_ascii=False)


def _code(text: str) -> str:
    """Return a stranger's text as code of Markdown, in which nothing is markup; also within a table."""
    return f"`{_plain(text).replace('`', '?').replace('|', '?') or ' '}`"


def _escaped(text: str) -> str:
    return _plain(text).replace("|", "?").replace("`", "?").replace("<", "?")
