"""Test ``edgedec list`` and ``edgedec remove``: what is found, and what is never removed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgedec.bundle.embedded import EMBEDDED
from edgedec.cli import _kept_bundles, bundles
from edgedec.cli._kept_bundles import processes_using
from edgedec.demo import figures_path, kept_path
from edgedec.host.paths import cache_folder
from edgedec.quantize.model_card import CardFacts, add_card
from edgedec.quantize.provenance import provenance
from tests.edgedec.cli.conftest import Edgedec
from tests.edgedec.cli.support.pseudo_terminal import PseudoTerminal


@pytest.fixture
def cache(bundle: Path) -> Path:
    """Return a cache folder with a bundle of an embedded model, one of an older edgedec and one of bench."""
    folder = cache_folder()
    for path in (kept_path("demo"), folder / "demo-old.edgedec", folder / "bench" / "demo-ternary-v1.edgedec"):
        shutil.copytree(bundle, path)
    (folder / "verified").mkdir()
    return folder


def names(edgedec: Edgedec, *options: str) -> list[Any]:
    listed: Any = edgedec("list", "--json", *options).json["bundles"]
    return [entry["name"] for entry in listed]


KNOWN = ["demo", "bench/demo-ternary-v1.edgedec", "demo-old.edgedec"]


def test_the_cache_is_listed(edgedec: Edgedec, cache: Path) -> None:
    data: Any = edgedec("list", "--json").json
    assert [entry["name"] for entry in data["bundles"]] == KNOWN
    assert (data["cache"], data["not_made"]) == (str(cache), [name for name in EMBEDDED if name != "demo"])
    first = data["bundles"][0]
    assert (first["path"], first["place"], first["method"]) == (str(kept_path("demo")), "embedded", "float")
    assert first["bytes"] == sum(file.stat().st_size for file in kept_path("demo").iterdir())
    assert first["problem"] is None
    text = edgedec("list").stdout
    for name in (*KNOWN, *EMBEDDED, "float", "made when it is first used"):
        assert name in text


def test_an_empty_cache_is_listed(edgedec: Edgedec) -> None:
    data: Any = edgedec("list", "--json").json
    assert (data["bundles"], data["not_made"]) == ([], list(EMBEDDED))


def test_folders_are_listed(edgedec: Edgedec, bundle: Path, cache: Path) -> None:
    Path("models").mkdir()
    shutil.copytree(bundle, "models/story.edgedec")
    Path("models/linked").symlink_to(bundle)
    Path("models/other").mkdir()
    found = names(edgedec, "--folder", "models", "--folder", str(bundle))
    assert found == [*KNOWN, "models/linked", "models/story.edgedec", str(bundle)]
    outcome = edgedec("list", "--folder", "model")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "--folder model: there is no such folder; did you mean 'models'?" in outcome.stderr


def test_a_damaged_bundle_is_listed_and_named(edgedec: Edgedec, cache: Path) -> None:
    (cache / "demo-old.edgedec" / "manifest.json").write_text("{")
    outcome = edgedec("list")
    assert (outcome.code, "unreadable" in outcome.stdout) == (0, True)
    assert outcome.stderr.startswith("demo-old.edgedec: ")
    assert edgedec("remove", "demo-old.edgedec", "--yes").code == 0
    assert not (cache / "demo-old.edgedec").exists()


def test_bundles_are_removed(edgedec: Edgedec, cache: Path) -> None:
    (cache / "demo-old.edgedec" / ".cpu-kernels.layout").write_text("x")
    outcome = edgedec("remove", "demo-old.edgedec", str(kept_path("demo")), "demo", "--yes", "--json")
    assert outcome.code == 0
    assert outcome.json["removed"] == [str(cache / "demo-old.edgedec"), str(kept_path("demo"))]
    assert sorted(entry.name for entry in cache.iterdir()) == ["bench", "verified"]
    assert names(edgedec) == ["bench/demo-ternary-v1.edgedec"]
    assert edgedec("remove", "bench/demo-ternary-v1.edgedec", "-y").stdout.startswith("removed 1 bundle, ")


def test_a_folder_in_the_cache_does_not_take_an_embedded_models_name(
    edgedec: Edgedec, cache: Path, bundle: Path
) -> None:
    own = cache / "demo"
    shutil.copytree(bundle, own)
    assert sorted(names(edgedec)) == sorted([*KNOWN, str(own)])
    assert edgedec("remove", "demo", "-y", "--json").json["removed"] == [str(kept_path("demo"))]
    assert "demo has no bundle in the cache folder" in refused(edgedec, cache, "demo")
    assert edgedec("remove", str(own), "-y", "--json").json["removed"] == [str(own)]


def test_a_bundle_with_its_model_card_is_removed(edgedec: Edgedec, cache: Path, checkpoint: Path) -> None:
    """All files that the manifest lists are the bundle's."""
    path = cache / "demo-old.edgedec"
    add_card(path, CardFacts(origin=provenance(checkpoint), command="edgedec quantize", stored_bytes=1))
    assert (path / "README.md").is_file()
    assert edgedec("remove", path.name, "-y").code == 0
    assert not path.exists()


def test_a_card_that_the_manifest_does_not_list_is_somebodys(edgedec: Edgedec, cache: Path) -> None:
    (cache / "demo-old.edgedec" / "README.md").write_text("mine")
    assert "holds more than the bundle: README.md" in refused(edgedec, cache, "demo-old.edgedec")


def test_the_figures_of_an_embedded_model_are_removed_with_it(edgedec: Edgedec, cache: Path, bundle: Path) -> None:
    older, mine = cache / "demo-int8-0123456789ab.edgedec", cache / "mine.edgedec"
    for path in (older, mine):
        shutil.copytree(bundle, path)
    for path in (kept_path("demo"), older, mine):
        path.with_suffix(".json").write_text("{}")
    assert edgedec("remove", "demo", older.name, mine.name, "-y").code == 0
    assert not figures_path(kept_path("demo")).exists()
    assert [entry.name for entry in cache.glob("*.json")] == ["mine.json"]


def refused(edgedec: Edgedec, cache: Path, *words: str, code: int = 2) -> str:
    """Return the message of a call that removes nothing."""
    before = sorted(str(path) for path in cache.rglob("*"))
    outcome = edgedec("remove", *words, "--yes")
    assert (outcome.code, outcome.stdout) == (code, "")
    assert sorted(str(path) for path in cache.rglob("*")) == before
    assert "nothing was removed: " in outcome.stderr
    return outcome.stderr


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("demo-hybrid", "demo-hybrid has no bundle in the cache folder; it is made when it is first used"),
        (
            "demo-odl.edgedec",
            "there is no bundle 'demo-odl.edgedec' in the cache folder; did you mean 'demo-old.edgedec'?",
        ),
        ("zzz", "there is no bundle 'zzz' in the cache folder; `edgedec list` shows them"),
        ("mine.edgedec", "mine.edgedec is not in the cache folder, and edgedec removes nothing else"),
        ("verified", "there is no bundle 'verified'"),
        ("..", ".. is not in the cache folder"),
        (".", ". is not in the cache folder"),
        ("/", "/ is not in the cache folder"),
        ("../cache/edgedec/demo-old.edgedec", "../cache/edgedec/demo-old.edgedec is not in the cache folder"),
    ],
)
def test_anything_else_is_refused_by_name(edgedec: Edgedec, cache: Path, bundle: Path, word: str, message: str) -> None:
    shutil.copytree(bundle, "mine.edgedec")
    assert message in refused(edgedec, cache, word)
    refused(edgedec, cache, "demo-old.edgedec", word)
    assert Path("mine.edgedec/manifest.json").is_file()


def test_links_are_neither_listed_nor_followed(edgedec: Edgedec, cache: Path, bundle: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(bundle, outside)
    (cache / "linked.edgedec").symlink_to(outside)
    assert names(edgedec) == KNOWN
    refused(edgedec, cache, "linked.edgedec")
    (cache / "demo-old.edgedec" / "inside").symlink_to(outside)
    assert "demo-old.edgedec holds more than the bundle: inside" in refused(edgedec, cache, "demo-old.edgedec")
    assert (outside / "manifest.json").is_file()


def test_a_folder_with_other_files_is_refused(edgedec: Edgedec, cache: Path) -> None:
    (cache / "demo-old.edgedec" / "notes.txt").write_text("mine")
    assert "holds more than the bundle: notes.txt; move that away first" in refused(edgedec, cache, "demo-old.edgedec")


HOLD = (
    "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); {}; "
    "print('', flush=True); input()"
)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what other processes use")
@pytest.mark.parametrize("what", ["f.close()", "m.close()"])
def test_a_bundle_in_use_is_refused(edgedec: Edgedec, cache: Path, what: str) -> None:
    """A mapped file and an open file count."""
    file = cache / "demo-old.edgedec" / "weights.bin"
    command = [sys.executable, "-c", HOLD.format(what), str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processes_using(file.parent) == [process.pid]
        assert processes_using(kept_path("demo")) == []
        message = refused(edgedec, cache, "demo-old.edgedec", code=1)
        assert f"demo-old.edgedec is in use by process {process.pid}; end it first" in message
        process.communicate(b"\n")
    assert edgedec("remove", "demo-old.edgedec", "-y").code == 0


def test_without_proc_nothing_is_known_to_be_in_use(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_kept_bundles, "_processes", lambda: [2**22 + 1, os.getpid()])
    assert processes_using(cache) == []


def test_without_a_terminal_there_is_no_question(edgedec: Edgedec, cache: Path) -> None:
    outcome = edgedec("remove", "demo", stdin="y\n")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "nothing was removed: there is no terminal to ask on; give --yes" in outcome.stderr
    assert kept_path("demo").exists()


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(("answer", "left"), [("y\n", False), ("\n", True), ("no\n", True)])
def test_the_question_is_asked_on_a_terminal(cache: Path, answer: str, left: bool) -> None:
    terminal = PseudoTerminal("-m", "edgedec", "remove", "demo-old.edgedec")
    try:
        terminal.expect("remove demo-old.edgedec (")
        terminal.expect("[y/N] ")
        terminal.type(answer)
        terminal.expect("nothing was removed" if left else "removed 1 bundle")
        assert terminal.exit_code() == 0
    finally:
        terminal.close()
    assert (cache / "demo-old.edgedec").exists() == left


def test_a_folder_that_cannot_be_removed_is_named(
    edgedec: Edgedec, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**options: Any) -> str:
        raise PermissionError(13, "Permission denied", "place")

    monkeypatch.setattr("edgedec.cli.bundles.tempfile.mkdtemp", full)
    outcome = edgedec("remove", "demo", "-y")
    assert (outcome.code, outcome.stdout) == (1, "")
    assert f"{kept_path('demo')} was not removed: Permission denied" in outcome.stderr


def test_the_bundles_are_looked_at_again_after_the_answer(
    edgedec: Edgedec, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minutes may pass before somebody answers."""
    path = cache / "demo-old.edgedec"

    def agreed(question: str) -> bool:
        (path / "notes.txt").write_text("mine")
        return True

    monkeypatch.setattr(bundles, "_agreed", agreed)
    outcome = edgedec("remove", "demo", path.name)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "nothing was removed: " in outcome.stderr
    assert (path / "notes.txt").read_text() == "mine"
    assert kept_path("demo").exists()


@pytest.mark.parametrize("first", [None, "weights.bin"])
def test_a_removal_that_fails_says_where_the_bundle_is(
    edgedec: Edgedec, cache: Path, monkeypatch: pytest.MonkeyPatch, first: str | None
) -> None:
    def rmtree(folder: Path) -> None:
        if first is not None:
            (folder / first).unlink()
        raise PermissionError(13, "Permission denied", "tokenizer.json")

    monkeypatch.setattr("edgedec.cli.bundles.shutil.rmtree", rmtree)
    path = cache / "demo-old.edgedec"
    before = sorted(entry.name for entry in path.iterdir())
    outcome = edgedec("remove", path.name, "-y")
    assert (outcome.code, outcome.stdout) == (1, "")
    aside = list(cache.glob(".demo-old.edgedec.*"))
    if first is None:
        assert f"{path} was not removed: Permission denied: tokenizer.json" in outcome.stderr
        assert (aside, sorted(entry.name for entry in path.iterdir())) == ([], before)
    else:
        assert f"{path} was removed in part: Permission denied: tokenizer.json; remove {aside[0]}" in outcome.stderr
        assert sorted(entry.name for entry in (aside[0] / path.name).iterdir()) == sorted({*before} - {first})
