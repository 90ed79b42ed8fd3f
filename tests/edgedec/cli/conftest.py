"""Provide fixtures for the tests of the command line."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edgedec.bundle.bundle import Bundle
from edgedec.cli.app import app
from edgedec.runtime.session.answer import Answer
from edgedec.runtime.session.session import Session
from edgedec.runtime.text.stream import TextStream
from edgedec.runtime.text.tokenizer import Tokenizer
from tests.edgedec.cli.support.make_known_model import write_bundle, write_checkpoint


class Outcome:
    """Hold the exit code, the output and the messages of a command."""

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
    """Return the bundle of that checkpoint, under a path with spaces."""
    return write_bundle(checkpoint, tmp_path_factory.mktemp("with spaces") / "a bundle.edgedec")


@pytest.fixture(scope="session")
def mute_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle without a chat template."""
    folder = tmp_path_factory.mktemp("mute")
    return write_bundle(write_checkpoint(folder / "checkpoint", template=None), folder / "bundle")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle of the same model with another tokenizer, which cannot be a draft of ``bundle``."""
    folder = tmp_path_factory.mktemp("stranger")
    checkpoint = write_checkpoint(folder / "checkpoint")
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (checkpoint / "tokenizer.json").write_text(json.dumps(tokenizer))
    return write_bundle(checkpoint, folder / "bundle")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Restore the log: ``-v`` configures the log of the whole process, with a stream that closes when the command
    ends.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _no_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn progress lines off, so that stderr of a command in this process does not depend on the load of the machine."""
    monkeypatch.setattr("edgedec.cli.console.LINE_INTERVAL_S", 86400.0)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """Return the list to which each command of this process adds its answer."""
    collected: list[Answer] = []
    real = Session.generate

    def generate(session: Session, *args: Any, **options: Any) -> Answer:
        collected.append(real(session, *args, **options))
        return collected[-1]

    monkeypatch.setattr(Session, "generate", generate)
    return collected


def in_green(bundle: Path, answer: Answer) -> str:
    """Colour the text of an answer as --show-draft does, from what the answer says about its tokens."""
    stream = TextStream(Tokenizer.load(Bundle.open(bundle).tokenizer_file))
    pieces = [(stream.feed(token), guessed) for token, guessed in zip(answer.tokens, answer.drafted, strict=True)]
    return "".join(f"\x1b[32m{text}\x1b[0m" if guessed and text else text for text, guessed in pieces)


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of a terminal that shows colours."""
    for name in ("NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the configuration and the cache of the person who runs the tests."""
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
