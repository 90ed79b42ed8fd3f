"""Test ``edgedec generate``: text on stdout, figures on stderr, one JSON object with ``--json``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgedec.cli.generate import figures, note_narrowed
from edgedec.runtime.decoders._plugin import DecoderFigures
from edgedec.runtime.decoders.autoregressive import Rounds
from edgedec.runtime.decoders.switch import SwitchConfig, SwitchCounts
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.session.answer import Answer, Timings
from edgedec.runtime.text.stream import TextStream
from tests.edgedec.cli.conftest import Edgedec, in_green
from tests.edgedec.cli.support.make_known_model import BOS, ENDLESS, EOS, byte_tokenizer

TIMINGS = {
    "prompt_n",
    "prompt_ms",
    "prompt_per_second",
    "predicted_n",
    "predicted_ms",
    "predicted_per_second",
    "planned_bytes",
    "peak_bytes",
    "ctx_size",
    "kv_bits",
    "kv_policy",
    "lossless",
    "drafter",
    "rounds",
    "draft_n",
    "draft_n_accepted",
    "accepted_by_position",
    "draft_prompt_ms",
    "draft_ms",
    "verify_ms",
    "commit_ms",
    "speculating",
    "kernel",
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
    assert set(outcome.json) == {"text", "tokens", "stop_reason", "timings", "budget"}
    assert outcome.json["text"] == "Hi!"
    assert outcome.json["tokens"] == [*byte_tokenizer().encode("Hi!", add_special_tokens=False).ids, EOS]
    assert outcome.json["stop_reason"] == "eos"
    timings = outcome.json["timings"]
    assert isinstance(timings, dict)
    assert set(timings) == TIMINGS
    assert (timings["prompt_n"], timings["predicted_n"]) == (6, 4)
    assert outcome.stderr == ""


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["-p", "o", "-n", "10"], ENDLESS[:4]),
        (["-p", "o", "-n", "9"], ENDLESS[:3]),  # the cut 😀 is left out
        (["-p", "o", "-n", "12", "-r", "😀"], "é€"),
        (["-p", "o", "-r", "nothing", "--reverse-prompt", "€"], "é"),
        (["-p", "o?", "--echo"], "o?Hi!"),
        (["-p", "?", "-n", "6", "--ignore-eos"], "Hi!"),
        (["-p", "?", "-n", "0"], ""),
    ],
)
def test_options_change_the_answer(edgedec: Edgedec, bundle: Path, options: list[str], text: str) -> None:
    outcome = edgedec("generate", "-m", bundle, "--temp", "0", *options)
    assert outcome.stdout == f"{text}\n"


@pytest.mark.thorough
def test_a_prompt_is_read_from_a_file_and_from_stdin(edgedec: Edgedec, bundle: Path) -> None:
    Path("a prompt.txt").write_text("well?\n")
    from_file = edgedec("generate", "-m", bundle, "-f", "a prompt.txt", "--temp", "0", "--json")
    from_stdin = edgedec("generate", "-m", bundle, "-f", "-", "--temp", "0", "--json", stdin="well?")
    assert from_file.json["tokens"] == from_stdin.json["tokens"]
    assert from_file.json["text"] == "Hi!"


@pytest.mark.thorough
def test_a_seed_makes_sampling_repeatable(edgedec: Edgedec, bundle: Path) -> None:
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
    first, again, different = (edgedec(*options, seed).json["tokens"] for seed in ("7", "7", "8"))
    assert first == again != different


@pytest.mark.thorough
def test_ids_past_the_tokenizer_are_never_sampled(edgedec: Edgedec, bundle: Path) -> None:
    options = ("--temp", "1000", "--top-k", "0", "--top-p", "1", "--min-p", "0", "-n", "400", "--ignore-eos", "--json")
    tokens = edgedec("generate", "-m", bundle, "-p", "a", "--seed", "0", *options).json["tokens"]
    assert isinstance(tokens, list)
    assert len(tokens) == 400
    assert max(tokens) <= EOS
    assert BOS in tokens or EOS in tokens, "the hottest sampling reaches the last ids"


# speculation

LOOP = ("-p", "o" + ENDLESS, "-n", "66", "--temp", "0")


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("drafter", ["ngram", "model", "auto"])
def test_guesses_do_not_change_the_text_and_are_counted(edgedec: Edgedec, bundle: Path, drafter: str) -> None:
    draft = () if drafter == "ngram" else ("-md", bundle)
    plain = edgedec("generate", "-m", bundle, *LOOP, "--json")
    outcome = edgedec("generate", "-m", bundle, *LOOP, "--spec-type", drafter, *draft, "--json")
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.json["tokens"] == plain.json["tokens"]
    timings = outcome.json["timings"]
    assert isinstance(timings, dict)
    assert set(timings) == TIMINGS
    assert timings["drafter"] == drafter
    assert timings["draft_n_accepted"] == sum(timings["accepted_by_position"])
    assert 66 <= timings["rounds"] + timings["draft_n_accepted"] <= 66 + 8  # guesses past the limit are cut
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
    assert plain.json["timings"]["rounds"] == 66  # type: ignore[index]


@pytest.mark.thorough
def test_figures_of_speculation_add_up(edgedec: Edgedec, bundle: Path, answers: list[Answer]) -> None:
    assert "guesses" not in edgedec("generate", "-m", bundle, *LOOP).stderr
    line = edgedec("generate", "-m", bundle, *LOOP, "--spec-type", "ngram").stderr
    rounds = answers[-1].timings.rounds
    accepted = sum(rounds.accepted)
    assert f"; drafter ngram: {accepted} of {rounds.drafted} guesses accepted, " in line
    assert f"{(rounds.count + accepted) / rounds.count:.1f} tokens per round" in line
    assert f"; lossless: {answers[-1].timings.lossless}" in line


@pytest.mark.thorough
@pytest.mark.parametrize("entropy", ["0", "64"])
def test_switching_reports_the_tokens_of_each_model(edgedec: Edgedec, bundle: Path, entropy: str) -> None:
    options = ("generate", "-m", bundle, *LOOP, "-md", bundle, "--decoder", f"switch:entropy={entropy}")
    plain, switched = edgedec("generate", "-m", bundle, *LOOP).stdout, edgedec(*options, "--json")
    timings = switched.json["timings"]
    assert isinstance(timings, dict)
    assert set(timings) == TIMINGS | {"switch"}
    large, small = (66, 0) if entropy == "0" else (0, 66)
    expected = {"entropy_bits": float(entropy), "window": 1, "large_n": large, "small_n": small, "switches": 0}
    assert timings["switch"] == expected | {"compared_n": 0, "agreed_n": 0, "agreement": None}
    assert (timings["lossless"], timings["draft_n"], timings["speculating"]) == ("lossy", 0, False)
    outcome = edgedec(*options)
    assert outcome.stdout == plain  # both models are one
    assert f"; decoder switch: {large} of 66 tokens on the large model, agreement not measured" in outcome.stderr
    assert "; lossless: lossy" in outcome.stderr
    assert "guesses" not in outcome.stderr


def test_figures_of_switching_have_the_agreement() -> None:
    counts = SwitchCounts(config=SwitchConfig(), large_tokens=60, small_tokens=40, switches=9, compared=38, agreed=19)
    decoder = DecoderFigures(name="switch", text=counts.as_text(), values=counts.as_json())
    line = figures(Answer(timings=Timings(drafter="model", lossless="lossy", decoder=decoder)))
    assert "decoder switch: 60 of 100 tokens on the large model, which agrees with 19 of 38 tokens of the small" in line
    assert "(50 %); lossless: lossy" in line


@pytest.mark.parametrize("speculating", [True, False])
def test_figures_report_that_speculation_was_off(speculating: bool) -> None:
    rounds = Rounds(count=100, drafted=180, accepted=[80, 40])
    timings = Timings(drafter="ngram", rounds=rounds, lossless="exact", speculating=speculating)
    off = "" if speculating else ", off at the end because it lost time"
    line = figures(Answer(timings=timings))
    assert f"; drafter ngram: 120 of 180 guesses accepted, 2.2 tokens per round{off}; lossless: exact" in line


@pytest.mark.thorough
@pytest.mark.usefixtures("colours")
def test_show_draft_colours_accepted_guesses_only(edgedec: Edgedec, bundle: Path, answers: list[Answer]) -> None:
    output = edgedec("generate", "-m", bundle, *LOOP, "--spec-type", "ngram", "--show-draft").stdout
    (answer,) = answers
    assert {True, False} == set(answer.drafted)
    assert output == in_green(bundle, answer) + "\n"
    assert "\x1b[32m" in output
    assert edgedec("generate", "-m", bundle, *LOOP, "--show-draft").stdout == ENDLESS * 6 + "\n"


@pytest.mark.thorough(sample=1)
@pytest.mark.usefixtures("colours")
@pytest.mark.parametrize("without", ["terminal", "colours", "option"])
def test_nothing_is_coloured_outside_of_a_terminal(
    edgedec: Edgedec, bundle: Path, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    if without == "terminal":
        monkeypatch.delenv("FORCE_COLOR")
    if without == "colours":
        monkeypatch.setenv("NO_COLOR", "1")
    options = () if without == "option" else ("--show-draft",)
    assert edgedec("generate", "-m", bundle, *LOOP, "--spec-type", "ngram", *options).stdout == ENDLESS * 6 + "\n"


def spawn(*args: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """Start a command as a shell does, with stdout buffered because it is a pipe."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        [sys.executable, "-m", "edgedec", *args],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environment | {"PYTHONUTF8": "1"},
    )


@pytest.mark.thorough
def test_every_piece_of_the_stream_is_whole_characters(bundle: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # one packet per write, never merged
    with ours, spawn("generate", "-m", str(bundle), "-p", "o", "-n", "66", "--temp", "0", stdout=theirs.fileno()):
        theirs.close()
        pieces = list(iter(lambda: ours.recv(1 << 16), b""))
    text = "".join(piece.decode() for piece in pieces)  # a split character would not decode
    assert text == (ENDLESS * 6) + "\n"
    assert len(pieces) > 5, "it came in one piece: nothing was streamed"


@pytest.mark.thorough
def test_a_closed_pipe_ends_the_command_silently(bundle: Path) -> None:
    with spawn("generate", "-m", str(bundle), "-p", "o", "--temp", "0") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.thorough
def test_ctrl_c_ends_the_answer_and_prints_its_beginning(bundle: Path) -> None:
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


def test_ctrl_c_prints_the_json_of_the_beginning(
    edgedec: Edgedec, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize(
    ("requested", "planned", "reported"), [("auto", "none", True), ("auto", "auto", False), ("none", "none", False)]
)
def test_a_drafter_that_the_budget_left_out_is_named(
    capsys: pytest.CaptureFixture[str], requested: str, planned: str, reported: bool
) -> None:
    plan = SimpleNamespace(speculation_from_bytes=7 << 20)
    session = SimpleNamespace(run=SimpleNamespace(spec=SpecConfig(drafter=planned), plan=plan))
    note_narrowed(session, SpecConfig(drafter=requested))  # type: ignore[arg-type]
    messages = capsys.readouterr().err
    assert ("no speculation" in messages and "7.0 MiB" in messages) == reported
    assert bool(messages) == reported


@pytest.mark.thorough
def test_an_ignored_ctrl_c_stays_ignored(bundle: Path) -> None:
    """A shell starts its background jobs so: Ctrl-C is for the job in the foreground."""
    command = 'trap "" INT; exec "$0" -m edgedec "$@"'
    arguments = ["generate", "-m", str(bundle), "-p", "o", "--temp", "0", "-n", "2000", "-c", "4096"]
    with subprocess.Popen(
        ["sh", "-c", command, sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUTF8": "1"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        begin = os.read(process.stdout.fileno(), 4096)
        for _ in range(3):
            process.send_signal(signal.SIGINT)
        assert (begin + process.stdout.read()).endswith(b"\n")
        assert b"ended by: limit" in process.stderr.read()
    assert process.returncode == 0
