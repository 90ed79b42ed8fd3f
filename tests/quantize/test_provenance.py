"""Test what is taken of the texts of a checkpoint: little, whatever they hold."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edgedec.quantize import provenance as module
from edgedec.quantize.provenance import front_matter, provenance
from tests.quantize.readers.support.make_gguf import file_bytes, metadata


def readme(*lines: str) -> str:
    return "\n".join(["---", *lines, "---", "# A model", "license: of-the-body"])


def test_words_and_lists_are_read() -> None:
    text = readme(
        "# a comment",
        "license: apache-2.0  # of the code",
        'license_name: "a-name"',
        "base_model: 'org/model'",
        "language: [en, 'de']",
        "tags:",
        "- one",
        "  - two",
        "",
        "empty:",
    )
    expected = {
        "license": ["apache-2.0"],
        "license_name": ["a-name"],
        "base_model": ["org/model"],
        "language": ["en", "de"],
        "tags": ["one", "two"],
        "empty": [],
    }
    assert front_matter(text) == expected
    assert front_matter("\ufeff" + text.replace("\n", "\r\n")) == expected


@pytest.mark.parametrize(
    "line",
    [
        "license: &a [*a]",
        "license: *a",
        "license: !!python/object/apply:os.system [true]",
        "license: |",
        "license: >-",
        "license: {a: mit}",
        "license: [mit, [mit]]",
        'license: "mit\\u0000"',
        'license: "a" "b"',
        "license: mit: x",
        "license: mi\x00t",
        "license: mi\x1b[31mt",
        "license: mit\n  more",
        "license:\n  name: mit",
        "license:\n- a: b\n  c: d",
        "license: mit\nlicense: apache-2.0",
        "license:\n- mit\nlicense: mit",
        "? license\n: mit",
    ],
)
def test_other_yaml_is_not_read(line: str) -> None:
    assert front_matter(readme(line)).get("license") is None


@pytest.mark.parametrize(
    "text", ["", "---", "license: mit", "---\nlicense: mit", " ---\nlicense: mit\n---", "--- \tx\nlicense: mit\n---"]
)
def test_without_front_matter_nothing_is_read(text: str) -> None:
    assert front_matter(text) == {}


def checkpoint(folder: Path, text: str | bytes | None = None, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "notes.pdf").write_bytes(b"not part of it")
    for name, content in files.items():
        (folder / name).write_text(content)
    if text is not None:
        (folder / "README.md").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def test_a_folder_is_described(tmp_path: Path) -> None:
    folder = checkpoint(
        tmp_path / "story",
        readme(
            "license: other", "license_name: story-1", "license_link: https://example.org/l", "base_model: [a/b, c/d]"
        ),
        LICENSE="\n  Story License 1 \nmore",
        USE_POLICY="Be kind",
    )
    known = provenance(folder)
    assert (known.name, known.license, known.license_name) == ("story", ("other",), ("story-1",))
    assert (known.license_link, known.base_model) == (("https://example.org/l",), ("a/b", "c/d"))
    assert known.terms == {"LICENSE": "Story License 1", "USE_POLICY": "Be kind"}
    assert [file.name for file in known.files] == ["LICENSE", "README.md", "USE_POLICY", "model.safetensors"]
    assert known.files[-1].sha256 == hashlib.sha256(b"weights").hexdigest()
    assert known.files[-1].nbytes == 7
    assert known.unread == ()


def test_a_folder_of_the_hub_has_its_name(tmp_path: Path) -> None:
    place = tmp_path / "models--org--a.model" / "snapshots" / "0123"
    place.parent.mkdir(parents=True)
    blobs = tmp_path / "models--org--a.model" / "blobs"
    blobs.mkdir()
    (blobs / "r").write_text(readme("license: mit"))
    checkpoint(place)
    (place / "README.md").symlink_to("../../blobs/r")
    known = provenance(place)
    assert (known.name, known.license, known.unread) == ("org/a.model", ("mit",), ())


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("license: mit or later", "license of the checkpoint: mit or later"),
        ("license: " + "a" * 65, "license of the checkpoint: aaa"),
        ("license: [" + ", ".join("abcdefghi") + "]", "license of the checkpoint: a, b"),
        ("license: {a: b}", "license of the checkpoint: it is no word or list of words"),
        ("license_link: javascript:alert(1)", "license_link of the checkpoint: javascript:alert(1)"),
        ("license_link: https://example.org/>)<b", "license_link of the checkpoint: it is no word"),
        ("base_model: ../../etc/passwd", "base_model of the checkpoint: it is no word"),
        ("base_model: a/b/c", "base_model of the checkpoint: a/b/c"),
    ],
)
def test_what_is_not_used_is_named(tmp_path: Path, lines: str, reason: str) -> None:
    known = provenance(checkpoint(tmp_path / "c", readme(lines)))
    assert (known.license, known.license_link, known.base_model) == ((), (), ())
    (said,) = known.unread
    assert said.startswith(reason)
    assert len(said) < 200


def test_no_reason_has_the_path_of_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "secret home").mkdir()
    folder = checkpoint(tmp_path / "secret home" / "c", readme("license: mit"))
    (folder / "README.md").write_bytes(b"\xff\xfe")
    (folder / "LICENSE").symlink_to("/etc/passwd")
    known = provenance(folder)
    assert len(known.unread) == 2
    assert not any(word in said for said in known.unread for word in ("secret", "/etc", str(tmp_path)))


def _huge(folder: Path) -> None:
    (folder / "README.md").write_bytes(b"---\nlicense: mit\n---\n" + b"x" * (1 << 20))


def _binary(folder: Path) -> None:
    (folder / "README.md").write_bytes(b"---\nlicense: mit\n---\n\xff")


def _outside(folder: Path) -> None:
    (folder / "README.md").symlink_to("/etc/hostname")


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "README.md")


def _folder(folder: Path) -> None:
    (folder / "README.md").mkdir()


@pytest.mark.parametrize("attack", [_huge, _binary, _outside, _pipe, _folder])
def test_a_readme_that_is_none_breaks_nothing(tmp_path: Path, attack: Callable[[Path], None]) -> None:
    folder = checkpoint(tmp_path / "c")
    attack(folder)
    known = provenance(folder)
    assert known.license == ()
    assert any(reason.startswith("README.md: ") for reason in known.unread)
    assert "model.safetensors" in [file.name for file in known.files]


@pytest.mark.thorough
def test_long_front_matter_is_read_to_a_limit() -> None:
    many = [f"key{number}: x" for number in range(100_000)]
    assert front_matter(readme("license: mit", *many)) == {}
    assert front_matter("---\n" + "license: " + "a, " * 300_000) == {}
    assert front_matter(readme("license: [" + "a," * 300_000 + "]"))["license"] is None
    assert front_matter(readme("- " * 400_000)) == {}


def test_many_files_are_read_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_FILES", 3)
    known = provenance(checkpoint(tmp_path / "c", **{f"f{number}.json": "{}" for number in range(5)}))
    assert [file.name for file in known.files] == ["f0.json", "f1.json", "f2.json"]
    assert known.unread == ("3 further files: at most 3 are hashed",)


def test_terms_are_quoted_as_one_short_line(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c")
    (folder / "LICENSE.txt").write_bytes(b"\x00\x1b[31m\xff" + b"x" * 9000)
    (folder / "NOTICE").write_bytes(b"")
    known = provenance(folder)
    assert known.terms["LICENSE.txt"].isprintable()
    assert len(known.terms["LICENSE.txt"]) <= 120
    assert known.terms["NOTICE"] == ""


def test_a_file_reports_its_bytes(tmp_path: Path) -> None:
    steps = list[tuple[str, int, int]]()
    path = tmp_path / "stories.bin"
    path.write_bytes(bytes(5))
    known = provenance(path, report=lambda *step: steps.append(step))
    assert (known.name, [file.name for file in known.files]) == ("stories", ["stories.bin"])
    assert steps == [("stories.bin", 5, 5)]


@pytest.mark.parametrize(("value", "license"), [("apache-2.0", ("apache-2.0",)), ("a b\n", ()), (5, ())])
def test_a_gguf_file_is_described_by_its_metadata(tmp_path: Path, value: object, license: tuple[str, ...]) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(file_bytes(metadata("llama", general__license=value), []))
    known = provenance(path)
    assert known.license == license
    assert bool(known.unread) == (not license)
