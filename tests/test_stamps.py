"""Stamps of the third ring: the age of those of the project, and how a run of a part writes one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stamps import PARTS, STAMPS, NoHistoryError, Stamp, age, describe_ages, read_stamps, write_stamp

TESTS = """
import os

import pytest

@pytest.mark.nightly
def test_whole(): assert "BROKEN" not in os.environ

@pytest.mark.nightly
def test_second(): open("ran", "a").write("x")

@pytest.mark.nightly
@pytest.mark.skipif(True, reason="no such tool")
def test_skipped(): pass

def test_first(): assert False
"""
SETTINGS = """
[tool.pytest.ini_options]
testpaths = ["tests"]
addopts = ["--import-mode=importlib"]
markers = ["nightly", "compare"]
"""


@pytest.mark.parametrize("name", PARTS)
def test_the_third_ring_passed_lately(name: str, project_root: Path) -> None:
    try:
        commits = age(project_root, name)
    except NoHistoryError as error:
        pytest.skip(str(error))
    limit = PARTS[name].limit
    folders = ", ".join(PARTS[name].folders)
    assert commits <= limit, f"{commits} commits have touched {folders} since {name} passed: run make test-{name}"


@pytest.mark.parametrize("name", PARTS)
def test_the_folders_of_a_part_exist(name: str, project_root: Path) -> None:
    assert [folder for folder in PARTS[name].folders if not (project_root / folder).is_dir()] == []


def plain() -> dict[str, str]:
    """Return the environment without what a hook of git, or pytest itself, says to programs that it starts."""
    return {name: text for name, text in os.environ.items() if not name.startswith(("GIT_", "PYTEST"))}


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=plain()).stdout.strip()


def commit(folder: Path, path: str, text: str) -> str:
    """Commit a file and return the commit."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text, "utf-8")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "change")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path, project_root: Path) -> Path:
    """A repository with the hooks of this one and four tests, all of it committed."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path / "a b"
    (folder / "tests").mkdir(parents=True)
    (folder / "tests/conftest.py").write_text((project_root / "tests/support/stamps.py").read_text("utf-8"), "utf-8")
    (folder / "tests/test_cases.py").write_text(TESTS, "utf-8")
    (folder / "pyproject.toml").write_text(SETTINGS, "utf-8")
    git(folder.parent, "init", "-q", str(folder))
    commit(folder, ".gitignore", "build\nran\n__pycache__\n")
    return folder


def test_commits_to_the_folders_age_a_stamp(repository: Path) -> None:
    with pytest.raises(ValueError, match=r"tests/stamps.json has no stamp of nightly: run make test-nightly"):
        age(repository, "nightly")
    first = commit(repository, "hw/a.py", "1")
    write_stamp(repository, "nightly", Stamp(first, "2026-11-29", 2, 1))
    assert read_stamps(repository) == {"nightly": Stamp(first, "2026-11-29", 2, 1)}
    commit(repository, "a.md", "1")
    assert age(repository, "nightly") == 0
    commit(repository, "hw/a.py", "2")
    commit(repository, "sim/a.py", "2")
    assert age(repository, "nightly") == 2
    assert describe_ages(repository) == (
        f"nightly passed 2 of at most {PARTS['nightly'].limit} commits ago; "
        "tests/stamps.json has no stamp of compare: run make test-compare"
    )


def test_a_stamp_of_another_history_is_refused(repository: Path, tmp_path: Path) -> None:
    write_stamp(repository, "nightly", Stamp("0" * 40, "2026-11-29", 2, 1))
    commit(repository, "a", "1")
    with pytest.raises(ValueError, match="0000000000, where nightly passed, is not in this history"):
        age(repository, "nightly")
    git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), "shallow")
    for folder, message in (
        (tmp_path / "shallow", "shallow"),
        (tmp_path, "not a clone"),
        (repository / "tests", "not a"),
    ):
        with pytest.raises(NoHistoryError, match=message):
            age(folder, "nightly")


def test_a_clone_that_git_does_not_read_is_named(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / ".git/HEAD").write_text("damaged", "utf-8")
    with pytest.raises(NoHistoryError, match="git is not installed, or refuses to read this clone"):
        age(repository, "nightly")
    (repository / ".git").rename(repository / "other")
    monkeypatch.setenv("GIT_DIR", str(repository / "other"))  # a hook of git sets it
    with pytest.raises(NoHistoryError, match="not a clone"):
        age(repository, "nightly")


def run(folder: Path, *options: str, **variables: str) -> tuple[int, str]:
    """Return the exit status and the output of pytest with these options in the folder."""
    environment = {**plain(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
    code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("processes", [(), ("-p", "xdist.plugin", "-n", "2")], ids=["alone", "workers"])
def test_a_run_goes_on_after_a_failure_and_writes_its_stamp(repository: Path, processes: tuple[str, ...]) -> None:
    head = git(repository, "rev-parse", "HEAD")
    code, output = run(repository, "--stamp", "nightly", *processes, BROKEN="1")
    assert code == 1, output
    assert "tests/stamps.json was not written: a test failed" in output
    assert not (repository / STAMPS).exists()
    code, output = run(repository, "--stamp", "nightly", *processes)
    assert code == 0, output
    assert f"nightly at {head[:10]}: 1 tests passed in an earlier run" in output
    assert (repository / "ran").read_text() == "x"  # not a second time
    assert read_stamps(repository)["nightly"].commit == head
    assert read_stamps(repository)["nightly"] == Stamp(head, read_stamps(repository)["nightly"].day, 2, 1, 1)
    assert f"commit tests/stamps.json: nightly passed at {head[:10]}" in output
    assert "the third ring: nightly passed 0 of at most" in run(repository)[1]
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "stamp")
    write_stamp(repository, "compare", Stamp(head, "2026-11-29", 2, 1))  # a run of the other part does so
    code, output = run(repository, "--stamp", "nightly", *processes)
    assert code == 0, output
    assert read_stamps(repository)["nightly"].commit == git(repository, "rev-parse", "HEAD") != head


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["pyproject.toml", "tests/new.py"])
def test_a_modified_tree_gets_no_stamp(repository: Path, path: str) -> None:
    with (repository / path).open("a", encoding="utf-8") as file:
        file.write("# more\n")
    code, output = run(repository, "--stamp", "nightly")
    assert code == 0, output
    assert "nightly: files are modified or new, or git cannot say, so this run writes no stamp" in output
    assert not (repository / STAMPS).exists()


@pytest.mark.thorough
def test_a_file_without_what_it_needs_is_counted_as_skipped(repository: Path) -> None:
    head = commit(repository, "tests/test_absent.py", "import pytest\n\npytest.importorskip('no_such_package')\n")
    code, output = run(repository, "--stamp", "nightly")
    assert code == 0, output
    assert read_stamps(repository)["nightly"] == Stamp(head, read_stamps(repository)["nightly"].day, 2, 2)


PARTIAL = [("-m", "compare"), ("-k", "whole"), ("tests/test_cases.py",), ("--collect-only",), ("--deselect", "x")]


@pytest.mark.thorough
@pytest.mark.parametrize("options", PARTIAL, ids=str)
def test_a_stamp_is_of_a_whole_part(repository: Path, options: tuple[str, ...]) -> None:
    code, output = run(repository, "--stamp", "nightly", *options)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "--stamp runs a whole part of the third ring: leave out the names of files, -m, -k" in output
    assert not (repository / STAMPS).exists()


@pytest.mark.thorough
def test_a_part_without_its_packages_is_refused(repository: Path) -> None:
    conftest = (repository / "tests/conftest.py").read_text("utf-8").replace('"torch"', '"no_such_package"')
    commit(repository, "tests/conftest.py", conftest)
    code, output = run(repository, "--stamp", "compare")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "compare needs no_such_package" in output
    assert "run make test-compare, which installs it" in output
