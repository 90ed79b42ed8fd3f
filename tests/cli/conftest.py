"""Fixtures of the command line's tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgedec.cli.app import app
from tests.cli.known_model import write_bundle, write_checkpoint


class Outcome:
    """What a command did."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        self.code, self.stdout, self.stderr = code, stdout, stderr

    @property
    def json(self) -> dict[str, object]:
        data = json.loads(self.stdout)
        assert isinstance(data, dict)
        return data


Edgedec = Callable[..., Outcome]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "known answers")


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    """The bundle of that checkpoint, under a path with spaces."""
    return write_bundle(checkpoint, tmp_path_factory.mktemp("with spaces") / "a bundle.edgedec")


@pytest.fixture(scope="session")
def mute_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One without a chat template."""
    folder = tmp_path_factory.mktemp("mute")
    return write_bundle(write_checkpoint(folder / "checkpoint", template=None), folder / "bundle")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration and no cache of the person who runs the tests."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("EDGEDEC_DEBUG", raising=False)


@pytest.fixture
def edgedec() -> Edgedec:
    """Run a command inside this process; an unexpected exception passes through."""

    def run(*args: str | Path, stdin: str = "", env: dict[str, str] | None = None) -> Outcome:
        words: Sequence[str] = [str(arg) for arg in args]
        result = CliRunner().invoke(
            app,
            words,
            input=stdin.encode(errors="surrogateescape"),
            env=env,
            prog_name="edgedec",
            catch_exceptions=False,
        )
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run
