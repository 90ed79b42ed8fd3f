"""Test what commands write to stderr during long work."""

from __future__ import annotations

import gzip
import re
import sys
import threading
import time
from pathlib import Path

import pytest

from edgedec.cli.console import counted, note, notes_to, progress, read_text
from edgedec.errors import UsageError

LABEL = "quantizing"


def test_without_a_terminal_lines_go_to_stderr_and_stdout_stays_empty(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedec.cli.console.LINE_INTERVAL_S", 0.01)
    written, end = "", time.monotonic() + 120
    with progress(LABEL) as report:
        report("layers.3", 1, 4)
        while "25 %" not in written and time.monotonic() < end:  # on a busy machine a line may come before the report
            time.sleep(0.001)
            written += capsys.readouterr().err
    assert re.search(r"^quantizing: 25 %, layers\.3 \(\d+ s, about \d+ s left\)$", written, re.MULTILINE)
    assert capsys.readouterr().out == ""


def test_quick_work_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(LABEL) as report:
        report("layers.3", 1, 4)
    assert capsys.readouterr() == ("", "")


def test_where_notes_go_elsewhere_no_bar_is_drawn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedec.cli.console.LINE_INTERVAL_S", 0.01)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    came, texts = threading.Event(), list[str]()

    def put(text: str) -> None:
        texts.append(text)
        came.set()

    with notes_to(put):
        with progress(LABEL):
            assert came.wait(30)
        note("last")
    assert (texts[0].startswith(LABEL), texts[-1]) == (True, "last")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"GGUF\3\0\0\0", "a GGUF file"),  # these eight bytes happen to be UTF-8 too
        (gzip.compress(b"text", mtime=0), "a gzip archive"),
        (b"\x93NUMPY\1\0", "a NumPy array"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "a pointer of Git LFS, which stands for a file that was not downloaded",
        ),
    ],
)
def test_a_file_that_is_no_text_is_named_for_what_it_is(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "a text.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_text(path, "--text")
    assert str(caught.value) == f"--text {path}: is {what}; give a file with UTF-8 text in it"


def test_a_file_of_an_unknown_kind(tmp_path: Path) -> None:
    path = tmp_path / "latin1.txt"
    path.write_bytes("caf\xe9 au lait".encode("latin-1"))
    with pytest.raises(UsageError, match=r"latin1\.txt: not UTF-8 at byte 3; give a text, saved as UTF-8$"):
        read_text(path, "--text")


@pytest.mark.parametrize("text", ["x", '{"a": 1}', "<!doctype html><p>a page", "GGUF is a format"])
def test_a_text_is_read_whatever_it_says(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    assert read_text(tmp_path / "x", "--text") == text


@pytest.mark.parametrize(("number", "words"), [(0, "0 tokens"), (1, "1 token"), (2, "2 tokens")])
def test_counted(number: int, words: str) -> None:
    assert counted(number, "token") == words
