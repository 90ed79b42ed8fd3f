"""``edgedec generate``: text on stdout, figures on stderr, one JSON object with ``--json``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.runtime.stream import TextStream
from tests.cli.conftest import Edgedec
from tests.cli.known_model import BOS, ENDLESS, EOS, byte_tokenizer

TIMINGS = {
    "prompt_n",
    "prompt_ms",
    "prompt_per_second",
    "predicted_n",
    "predicted_ms",
    "predicted_per_second",
    "planned_bytes",
    "peak_bytes",
    "lossless",
}


def test_text_goes_to_stdout_and_figures_to_stderr(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("generate", "-m", bundle, "-p", "well?", "--temp", "0")
    assert (outcome.code, outcome.stdout) == (0, "Hi!\n")
    assert "prompt: 6 tokens" in outcome.stderr
    assert "answer: 4 tokens" in outcome.stderr
    assert "ended by: eos" in outcome.stderr


def test_json_is_all_of_stdout(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("generate", "-m", bundle, "-p", "well?", "--temp", "0", "--json")
    assert outcome.code == 0
    assert set(outcome.json) == {"text", "tokens", "stop_reason", "timings"}
    assert outcome.json["text"] == "Hi!"
    assert outcome.json["tokens"] == [*byte_tokenizer().encode("Hi!", add_special_tokens=False).ids, EOS]
    assert outcome.json["stop_reason"] == "eos"
    timings = outcome.json["timings"]
    assert isinstance(timings, dict)
    assert set(timings) == TIMINGS
    assert (timings["prompt_n"], timings["predicted_n"]) == (6, 4)
    assert outcome.stderr == ""


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["-p", "o", "-n", "10"], ENDLESS[:4]),
        (["-p", "o", "-n", "9"], ENDLESS[:3]),  # 😀 is cut short and left out
        (["-p", "o", "-n", "12", "-r", "😀"], "é€"),
        (["-p", "o", "-r", "nothing", "--reverse-prompt", "€"], "é"),
        (["-p", "o?", "--echo"], "o?Hi!"),
        (["-p", "?", "-n", "6", "--ignore-eos"], "Hi!"),
        (["-p", "?", "-n", "0"], ""),
    ],
)
def test_options(edgedec: Edgedec, bundle: Path, options: list[str], text: str) -> None:
    outcome = edgedec("generate", "-m", bundle, "--temp", "0", *options)
    assert outcome.stdout == f"{text}\n"


def test_prompt_from_a_file_and_from_stdin(edgedec: Edgedec, bundle: Path) -> None:
    Path("a prompt.txt").write_text("well?\n")
    from_file = edgedec("generate", "-m", bundle, "-f", "a prompt.txt", "--temp", "0", "--json")
    from_stdin = edgedec("generate", "-m", bundle, "-f", "-", "--temp", "0", "--json", stdin="well?")
    assert from_file.json["tokens"] == from_stdin.json["tokens"]
    assert from_file.json["text"] == "Hi!"


def test_seed_makes_sampling_repeatable(edgedec: Edgedec, bundle: Path) -> None:
    options = (
        "generate",
        "-m",
        bundle,
        "-p",
        "a",
        "--temp",
        "9",
        "--top-p",
        "1",
        "--min-p",
        "0",
        "-n",
        "9",
        "--json",
        "--seed",
    )
    first, again, other = (edgedec(*options, seed).json["tokens"] for seed in ("7", "7", "8"))
    assert first == again != other


def test_ids_past_the_tokenizer_never_come(edgedec: Edgedec, bundle: Path) -> None:
    options = ("--temp", "1000", "--top-k", "0", "--top-p", "1", "--min-p", "0", "-n", "400", "--ignore-eos", "--json")
    tokens = edgedec("generate", "-m", bundle, "-p", "a", "--seed", "0", *options).json["tokens"]
    assert isinstance(tokens, list)
    assert len(tokens) == 400
    assert max(tokens) <= EOS
    assert BOS in tokens or EOS in tokens, "the hottest sampling reaches the last ids"


def spawn(*args: str) -> subprocess.Popen[bytes]:
    """Start a command as a shell would, stdout buffered because it is a pipe."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        [sys.executable, "-m", "edgedec", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment | {"PYTHONUTF8": "1"},
    )


def test_every_piece_of_the_stream_is_whole_characters(bundle: Path) -> None:
    with spawn("generate", "-m", str(bundle), "-p", "o", "-n", "66", "--temp", "0") as process:
        assert process.stdout is not None
        pieces = list(iter(lambda: os.read(process.stdout.fileno(), 4096), b""))  # type: ignore[union-attr]
    text = "".join(piece.decode() for piece in pieces)  # a split character would not decode
    assert text == (ENDLESS * 6) + "\n"
    assert len(pieces) > 5, "it came in one piece: nothing was streamed"


def test_a_reader_that_goes_away_ends_it_silently(bundle: Path) -> None:
    with spawn("generate", "-m", str(bundle), "-p", "o", "--temp", "0") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_ctrl_c_ends_the_answer_and_prints_what_there_is(bundle: Path) -> None:
    with spawn("generate", "-m", str(bundle), "-p", "o", "--temp", "0", "-c", "4096") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        begin = os.read(process.stdout.fileno(), 4096)
        process.send_signal(signal.SIGINT)
        text = (begin + process.stdout.read()).decode()
        assert b"ended by: interrupted" in process.stderr.read()
    assert process.returncode == 130
    assert text.endswith("\n")
    assert (ENDLESS * 400).startswith(text[:-1])


def test_ctrl_c_with_json(edgedec: Edgedec, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = TextStream.feed

    def feed(stream: TextStream, token: int) -> str:
        if token == byte_tokenizer().token_to_id("o"):
            signal.raise_signal(signal.SIGINT)
        return real(stream, token)

    monkeypatch.setattr(TextStream, "feed", feed)
    before = signal.getsignal(signal.SIGINT)
    outcome = edgedec("generate", "-m", bundle, "-p", "o", "--temp", "0", "--json")
    assert outcome.code == 130
    assert (outcome.json["text"], outcome.json["stop_reason"]) == (ENDLESS, "interrupted")
    assert signal.getsignal(signal.SIGINT) is before
