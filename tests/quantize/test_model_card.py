"""Test the model card of a bundle: its form, whatever the checkpoint says, and that the manifest binds it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # installed with huggingface_hub, which tokenizers requires

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import MANIFEST
from edgedec.errors import BundleError, EdgedecError
from edgedec.quantize import model_card
from edgedec.quantize.model_card import CardFacts, add_card, card_text
from edgedec.quantize.provenance import README, FileFact, Provenance
from tests.edgedec.cli.support.make_known_model import write_bundle, write_checkpoint

DIGEST = "0" * 64


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle without a card."""
    folder = tmp_path_factory.mktemp("card")
    return write_bundle(write_checkpoint(folder / "checkpoint"), folder / "bundle")


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "bundle"))


def facts(**changes: Any) -> CardFacts:
    members: dict[str, Any] = {"name": "org/story", "files": (FileFact(name="w", nbytes=3, sha256=DIGEST),)}
    measured = {
        name: changes.pop(name) for name in ("perplexity_before", "perplexity_after", "text") if name in changes
    }
    command = changes.pop("command", "edgedec quantize story -o BUNDLE")
    return CardFacts(
        origin=Provenance(**members | changes), command=command, stored_bytes=12345, scored=500, **measured
    )


def front(card: str) -> dict[str, Any]:
    """Return the front matter as a YAML parser reads it, which must be between the first two lines of dashes."""
    _, matter, _ = re.split(r"^---$", card, maxsplit=2, flags=re.MULTILINE)
    loaded = yaml.safe_load(matter)
    assert isinstance(loaded, dict)
    return loaded


def test_a_card_has_the_facts(bundle: Path) -> None:
    card = card_text(
        Bundle.open(bundle),
        facts(
            license=("apache-2.0",),
            base_model=("org/base",),
            terms={"LICENSE": "Apache License"},
            perplexity_before=4.0,
            perplexity_after=4.1,
            text="story.txt",
        ),
    )
    assert front(card) == {
        "library_name": "edgedec",
        "pipeline_tag": "text-generation",
        "license": "apache-2.0",
        "base_model": "org/story",
        "base_model_relation": "quantized",
        "tags": ["edgedec", "llama", "float"],
    }
    assert "| perplexity of the checkpoint | 4.0000 |" in card
    assert "| perplexity of the bundle | 4.1000 (+2.50 %) |" in card
    assert "| scored text | story.txt, 500 tokens |" in card
    assert "| made from, as the checkpoint says | `org/base` |" in card
    assert "    edgedec quantize story -o BUNDLE\n" in card
    assert f"| `w` | 3 | `{DIGEST}` |" in card
    assert "- `LICENSE`, which begins `Apache License`" in card


def test_what_is_unknown_is_said(bundle: Path) -> None:
    card = card_text(Bundle.open(bundle), facts(unread=("license of the checkpoint: mit or later",)))
    assert front(card)["license"] == "unknown"
    assert "The checkpoint names no licence that could be read." in card
    assert "| perplexity | not measured |" in card
    assert "- `license of the checkpoint: mit or later`" in card


HOSTILE = (
    "---\nlicense: mit",
    "a`|<script>alert(1)</script>",
    '"quoted" \\ and \t tabs',
    "!!python/object/apply:os.system [true]",
    "\x1b[31m\x00\r\n",
    "\u202egnp.exe \u2028 \ud800",
    "x" * 5000,
    "]]>--> | a | b |\n|---|",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_a_checkpoint_are_data(bundle: Path, text: str) -> None:
    """Whatever a stranger's text is, the front matter has the same keys, and no line or cell of the card is its own."""
    hostile = facts(
        name=text,
        license=(text,),
        license_name=(text, text),
        license_link=(text,),
        base_model=(text,),
        terms={text: text},
        files=(FileFact(name=text, nbytes=1, sha256=DIGEST),),
        unread=(text,),
        text=text,
        command=f"edgedec quantize '{text}' -o BUNDLE",
        perplexity_before=1.0,
        perplexity_after=1.0,
    )
    plain = facts(
        name="n",
        license=("l",),
        license_name=("l", "l"),
        license_link=("https://example.org",),
        base_model=("b",),
        terms={"t": "t"},
        unread=("u",),
        text="t",
        command="c",
        perplexity_before=1.0,
        perplexity_after=1.0,
    )
    opened = Bundle.open(bundle)
    card, expected = card_text(opened, hostile), card_text(opened, plain)
    card.encode()
    assert front(card).keys() == front(expected).keys()
    assert front(card)["library_name"] == "edgedec"
    assert len(card.split("\n")) - 1 == len(card.splitlines()) == len(expected.splitlines())
    for line, like in zip(card.splitlines(), expected.splitlines(), strict=True):
        assert line.isprintable()
        assert len(line) < 6000
        if line.startswith("|"):
            assert line.count("|") == like.count("|")
        if not line.startswith(("    ", "license", "base_model", '- "')):
            assert line.count("`") == like.count("`")
            outside = "".join(line.split("`")[::2])
            assert "<" not in outside


def test_a_card_is_bound(bundle: Path) -> None:
    before = Bundle.open(bundle).manifest
    add_card(bundle, facts())
    opened = Bundle.open(bundle)
    assert opened.file_bytes.keys() == before.file_bytes.keys() | {README}
    assert (opened.config, opened.tensors, opened.tokenizer_hash) == (
        before.config,
        before.tensors,
        before.tokenizer_hash,
    )
    (bundle / README).write_text((bundle / README).read_text().replace("story", "stary"))
    with pytest.raises(BundleError, match=r"README\.md: its hash does not match the manifest"):
        Bundle.open(bundle)


def test_the_manifest_keeps_its_other_keys(bundle: Path) -> None:
    before = json.loads((bundle / MANIFEST).read_bytes())
    add_card(bundle, facts())
    after = json.loads((bundle / MANIFEST).read_bytes())
    assert list(after) == list(before)
    assert {key for key in after if after[key] != before[key]} == {"files", "sha256"}


def test_a_bundle_has_one_card(bundle: Path) -> None:
    add_card(bundle, facts())
    with pytest.raises(BundleError, match="has changed since it was written"):
        add_card(bundle, facts())


def test_a_bundle_is_whole_at_every_moment(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sha256 = Bundle.open(bundle).sha256
    write_bytes = Path.write_bytes
    for most in (0, 1):  # files that the disk has room for
        room = iter([True] * most)

        def limited(path: Path, data: bytes, room: Iterator[bool] = room) -> int:
            if not next(room, False):
                raise OSError(28, "No space left on device")
            return write_bytes(path, data)

        monkeypatch.setattr(Path, "write_bytes", limited)
        with pytest.raises(EdgedecError, match="the bundle is complete without its model card"):
            add_card(bundle, facts())
        monkeypatch.undo()
        assert Bundle.open(bundle).sha256 == sha256
    assert sorted(path.name for path in bundle.iterdir()) == sorted([MANIFEST, *Bundle.open(bundle).file_bytes])
    add_card(bundle, facts())


def test_the_card_is_there_before_the_manifest_lists_it(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sha256, names = Bundle.open(bundle).sha256, list[str]()

    def new_file(path: Path, *, follow: bool) -> AbstractContextManager[Path]:
        names.append(path.name)
        if len(names) == 2:
            raise OSError(28, "No space left on device")
        return nullcontext(path)

    monkeypatch.setattr(model_card, "new_file", new_file)
    with pytest.raises(EdgedecError, match="the bundle is complete without its model card"):
        add_card(bundle, facts())
    assert names == [README, MANIFEST]
    assert Bundle.open(bundle).sha256 == sha256


def test_a_link_in_the_place_of_the_card_is_not_followed(bundle: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    (bundle / README).symlink_to(other)
    add_card(bundle, facts())
    assert other.read_text() == "mine"
    assert not (bundle / README).is_symlink()
