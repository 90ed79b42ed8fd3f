"""Test the rule for versions of the bundle format: kept bundles open, and others are refused with advice."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from edgedec import __version__
from edgedec.bundle import manifest
from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import FEATURES, READABLE_VERSIONS, VERSION, encode_manifest
from edgedec.errors import BundleError, UnsupportedError
from tests.edgedec.support.reference_bundles import COUNT, FOLDER, PROMPT, generate

KEPT = sorted(FOLDER.glob("version_*/*.edgedec"))
MAX_BYTES = 100_000  # size of a bundle that is kept


def name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def rewrite(folder: Path, **changes: Any) -> Bundle:
    """Change keys of a manifest, sign it as a writer does, and open the bundle."""
    content = json.loads((folder / "manifest.json").read_bytes())
    data = encode_manifest({key: value for key, value in content.items() if key != "sha256"} | changes)
    (folder / "manifest.json").write_bytes(data)
    return Bundle.open(folder)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a copy of a bundle that is kept, which a test may change."""
    return Path(shutil.copytree(FOLDER / "version_1" / "int8.edgedec", tmp_path / "model"))


def test_each_version_that_is_read_has_bundles_of_every_method() -> None:
    assert READABLE_VERSIONS[-1] == VERSION
    assert list(READABLE_VERSIONS) == sorted(set(READABLE_VERSIONS))
    assert {name_of(path) for path in KEPT} == {
        f"version_{version}-{name}" for version in READABLE_VERSIONS for name in ("int8", "native_ternary", "planes")
    }
    for path in KEPT:
        assert sum(file.stat().st_size for file in path.iterdir()) < MAX_BYTES
        assert path.parent.name == f"version_{json.loads((path / 'manifest.json').read_bytes())['version']}"


@pytest.mark.parametrize("path", KEPT, ids=name_of)
def test_a_bundle_that_is_kept_opens_and_generates_the_recorded_tokens(path: Path) -> None:
    recorded = json.loads((path.parent / "tokens.json").read_text())
    assert recorded["prompt"] == list(PROMPT)
    assert len(recorded["tokens"][path.stem]) == COUNT
    assert generate(Bundle.open(path))[0] == recorded["tokens"][path.stem]


@pytest.mark.parametrize("version", [VERSION + 1, 10**30])
def test_a_newer_version_is_refused_with_both_ways_out(model: Path, version: int) -> None:
    with pytest.raises(UnsupportedError) as caught:
        rewrite(model, version=version, created_by="edgedec 9.0")
    message = str(caught.value)
    assert message.startswith(f"{model / 'manifest.json'}: has version ")
    assert f"of the bundle format, and edgedec {__version__} reads 1; " in message
    assert message.endswith(
        "install a newer edgedec ('edgedec 9.0' wrote the bundle), or make the bundle again with: "
        f"edgedec quantize CHECKPOINT -o {model}"
    )


def test_a_newer_version_is_recognized_despite_other_changes(model: Path) -> None:
    """Drop keys, ``created_by`` too, and change the hash, which a later version may do."""
    (model / "manifest.json").write_text('{"format": "edgedec-bundle", "version": 2}')
    with pytest.raises(UnsupportedError, match=r"has version 2 of the bundle format.*None wrote the bundle"):
        Bundle.open(model)


def test_an_older_version_is_refused_with_the_command_that_renews_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "READABLE_VERSIONS", (2, 3))
    with pytest.raises(UnsupportedError) as caught:
        Bundle.open(model)
    assert str(caught.value) == (
        f"{model / 'manifest.json'}: has version 1 of the bundle format, which edgedec {__version__} no longer reads "
        f"(it reads 2, 3); make the bundle again with: edgedec quantize CHECKPOINT -o {model}"
    )


def test_each_of_several_versions_is_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "READABLE_VERSIONS", (1, 2))
    assert generate(Bundle.open(model)) == generate(rewrite(model, version=2))


def test_an_unknown_feature_is_refused_by_name(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["int5", "head-caches"]
    assert not FEATURES & set(names)
    with pytest.raises(UnsupportedError) as caught:
        rewrite(model, requires=names, created_by="edgedec 9.0")
    assert str(caught.value) == (
        f"{model / 'manifest.json'}: requires ['head-caches', 'int5'], which edgedec {__version__} does not know; "
        "install a newer edgedec ('edgedec 9.0' wrote the bundle), or make the bundle again with: "
        f"edgedec quantize CHECKPOINT -o {model}"
    )
    monkeypatch.setattr(manifest, "FEATURES", frozenset(["int5"]))
    with pytest.raises(UnsupportedError, match=re.escape("requires ['head-caches'], which")):
        Bundle.open(model)
    monkeypatch.setattr(manifest, "FEATURES", frozenset(names))
    assert Bundle.open(model).tensors


def test_a_feature_is_refused_before_the_keys_that_it_changes_are_read(model: Path) -> None:
    content = json.loads((model / "manifest.json").read_bytes())
    tensors = {name: entry | {"scheme": {"kind": "int5"}} for name, entry in content["tensors"].items()}
    with pytest.raises(UnsupportedError, match=r"requires \['int5'\]"):
        rewrite(model, requires=["int5"], tensors=tensors)


def test_an_absent_list_of_requirements_is_an_empty_one(model: Path) -> None:
    expected = generate(Bundle.open(model))
    assert generate(rewrite(model, requires=[])) == expected


def test_unknown_keys_that_are_not_required_are_ignored(model: Path) -> None:
    expected = generate(Bundle.open(model))
    data = b"absolute maxima"
    (model / "calibration.bin").write_bytes(data)
    files = json.loads((model / "manifest.json").read_bytes())["files"]
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    bundle = rewrite(model, calibration={"part": [1, 2.5]}, files=files | {"calibration.bin": entry})
    assert generate(bundle) == expected


def test_an_unknown_file_is_checked_nevertheless(model: Path) -> None:
    (model / "calibration.bin").write_bytes(b"changed")
    files = json.loads((model / "manifest.json").read_bytes())["files"]
    entry = {"bytes": 7, "sha256": "0" * 64}
    with pytest.raises(BundleError, match=r"calibration\.bin: its hash does not match"):
        rewrite(model, files=files | {"calibration.bin": entry})
