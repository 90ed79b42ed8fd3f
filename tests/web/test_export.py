"""The folder of a site: its files are those of its manifest, and it is replaced as a whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import EdgedecError, UsageError
from edgedec.runtime.web.export import export_web
from edgedec.runtime.web.pieces import PieceWriter
from tests.web.support.tiny_site import write_tiny_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_tiny_bundle(tmp_path_factory.mktemp("a bundle") / "of a test")


def listed(site: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every description of a file in a manifest."""
    yield from (site["tokenizer"], site["arithmetic"], *site["programs"].values(), *site["weights"])
    if site["chat_template"]:
        yield site["chat_template"]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.thorough
def test_a_second_export_leaves_nothing_of_the_first(bundle: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "a folder" / "my site"
    export_web(bundle, folder, name="first", ctx_size=64)
    (folder / "model" / "weights-009.bin").write_bytes(b"of an earlier export")
    export_web(bundle, folder, name="second", ctx_size=32, kv_bits=8)
    files = contents(folder)
    site = json.loads(files["site.json"])
    assert (site["model"], site["positions"]) == ("second", 32)
    described = {one["name"]: (one["bytes"], one["sha256"]) for one in listed(site)}
    assert described == {
        name: (len(content), hashlib.sha256(content).hexdigest())
        for name, content in files.items()
        if name.startswith("model/")
    }
    assert [path.name for path in folder.parent.iterdir()] == ["my site"]


@pytest.mark.thorough
def test_a_full_disk_leaves_the_earlier_site_as_it_was(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_web(bundle, tmp_path / "site", name="first", ctx_size=64)
    before = contents(tmp_path / "site")
    written = 0
    write = PieceWriter.write

    def write_until_full(self: PieceWriter, data: np.ndarray[Any, Any]) -> None:
        nonlocal written
        written += 1
        if written == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, data)

    monkeypatch.setattr(PieceWriter, "write", write_until_full)
    for folder in ("site", "new"):
        written = 0
        with pytest.raises(EdgedecError, match="the disk is full"):
            export_web(bundle, tmp_path / folder, name="second", ctx_size=32)
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
    assert contents(tmp_path / "site") == before


def test_a_folder_with_the_site_json_of_another_program_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "site.json").write_text('{"title": "my pages"}', "utf-8")
    with pytest.raises(UsageError, match=r"its site\.json is not that of a site of edgedec; choose another name or"):
        export_web(bundle, tmp_path, name="m")
    assert contents(tmp_path) == {"site.json": b'{"title": "my pages"}'}


def test_pieces_are_of_the_size_asked_for_and_make_the_stream_together(tmp_path: Path) -> None:
    with PieceWriter(tmp_path, "model/weights", limit_bytes=16) as writer:
        for size in (5, 27, 0, 16, 1):
            writer.write(np.arange(writer.written, writer.written + size, dtype=np.uint8))
    files = contents(tmp_path)
    assert [(file.name, file.bytes) for file in writer.files] == [
        ("model/weights-000.bin", 16),
        ("model/weights-001.bin", 16),
        ("model/weights-002.bin", 16),
        ("model/weights-003.bin", 1),
    ]
    assert b"".join(files[file.name] for file in writer.files) == bytes(range(49))
    assert [file.sha256 for file in writer.files] == [
        hashlib.sha256(files[file.name]).hexdigest() for file in writer.files
    ]
