"""Test ``edgedec list`` and ``edgedec remove``: what is found, and what is never removed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgedec.cli import _kept_bundles
from edgedec.cli._kept_bundles import processes_using
from edgedec.demo import kept_path
from edgedec.embedded import EMBEDDED
from edgedec.paths import cache_folder
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
