"""A third decoder is one file: every command, the server and the conformance suite take it, with no other line changed.

Its rows are no causal function of the ids, so that whoever keeps or computes rows has to ask its recipe. Each such way is
driven here, and gives what a run without any kept row gives, to the last bit of the log-probabilities. With the recipe of
causal rows in its place the same run gives something else.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.plugins import load
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime import decoders
from edgedec.runtime.decoders._plugin import DECODERS, choose_decoder
from edgedec.runtime.engine.spill import SpillFolder
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import I32, Limits
from edgedec.runtime.row_recipe import CAUSAL, RowRecipe, make_rows
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.answer import AnswerStream
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import open_target
from tests.conformance.test_targets import CONFIG
from tests.edgedec.cli.conftest import Edgedec, edgedec  # noqa: F401 - a fixture
from tests.edgedec.cli.support.make_known_model import byte_tokenizer
from tests.runtime.decoders.support.with_third import THIRD
from tests.runtime.server.support.serving import serving

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

STORY = "Anna went into the wood and looked for berries, looked for berries, looked for berries, and found 3"
Written = list[tuple[int, float]]


@pytest.fixture(autouse=True)
def third(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(decoders, "__path__", [*decoders.__path__, str(THIRD)])
    yield
    sys.modules.pop(f"{DECODERS}.block", None)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "b"
    config = CONFIG | {"vocab_size": 264, "max_position_embeddings": 256}
    write_random_bundle(path, config, "int8", tokenizer_json=byte_tokenizer().to_str())
    return path


# --- rows of a second recipe ------------------------------------------------------------------------------------------


class Runs:
    """Runs of one model. ``recipe`` is what the session takes for the recipe of the decoder."""

    def __init__(self, path: Path, folder: Path, recipe: RowRecipe | None = None) -> None:
        self.path, self.folder, self.recipe = path, folder, recipe

    def open(self, *, sequences: int = 1, device: str = "cpu") -> Session:
        plugin = load(DECODERS, "block")
        if self.recipe is not None:
            plugin.__dict__["TRAITS"] = replace(plugin.TRAITS, recipe=self.recipe)
        spec = SpecConfig(decoder="block")
        return Session.open(self.path, threads=1, ctx_size=160, sequences=sequences, device=device, spec=spec)

    def disk(self) -> SpillFolder:
        return SpillFolder(self.folder, model="m")


def begin(session: Session, prompt: str, count: int = 12) -> AnswerStream:
    sampling = SamplingConfig(temperature=0.9, seed=3)
    return session.stream(prompt, n_predict=count, ignore_eos=True, logprobs=0, sampling=sampling)


def end(session: Session, *streams: AnswerStream) -> list[Written]:
    """Write all texts to their ends."""
    while not all(stream.ended for stream in streams):
        session.scheduler.step()
    for stream in streams:
        stream.take()
        stream.take()  # an error follows the pieces
    return [
        [(token, one.logprob) for token, one in zip(stream.answer.tokens, stream.answer.logprobs, strict=True)]
        for stream in streams
    ]


def cold(runs: Runs, prompt: str, device: str = "cpu") -> Written:
    with runs.open(device=device) as session:
        return end(session, begin(session, prompt))[0]


def cache_hit(runs: Runs, device: str = "cpu") -> Written:
    """Continue a text of which the cache has the beginning, in the middle of a block."""
    with runs.open(device=device) as session:
        end(session, begin(session, STORY[:-3]))
        written = begin(session, STORY)
        result = end(session, written)[0]
        assert written.answer.timings.prompt_kept > 80
        return result


def truncation(runs: Runs, device: str = "cpu") -> Written:
    """Go back to where another prompt began to differ: within a block."""
    with runs.open(device=device) as session:
        end(session, begin(session, STORY[:-13] + "but found none at all"))
        written = begin(session, STORY)
        result = end(session, written)[0]
        assert written.answer.timings.prompt_kept > 70
        return result


def fork(runs: Runs) -> Written:
    """Share the rows of a text that is being written."""
    with runs.open(sequences=3) as session:
        first = begin(session, STORY[:-2])
        for _ in range(8):
            session.scheduler.step()
        written = begin(session, STORY)
        result = end(session, first, written)[1]
        assert written.answer.timings.prompt_kept > 80
        return result


def spill(runs: Runs) -> Written:
    """Read the rows of a text that has ended from a file."""
    with runs.disk() as disk, runs.open(sequences=2) as session:
        session.memory.keep_on_disk(disk)
        end(session, begin(session, STORY[:-1]))
        session.memory.move_to_disk()
        assert len(disk.files) == 1
        written = begin(session, STORY)
        result = end(session, written)[0]
        assert written.answer.timings.prompt_kept > 80
        return result


def parked(runs: Runs, *, damaged: bool = False) -> Written:
    """Move a text that is being written to the disk; its rows are computed again if the file is damaged."""
    with runs.disk() as disk, runs.open(sequences=2) as session:
        session.memory.keep_on_disk(disk)
        other, written = begin(session, "Ben", 99), begin(session, STORY)
        while not written.answer.tokens:
            session.scheduler.step()
        session.memory.park()
        assert session.memory.parked == 1
        if damaged:
            disk.files[-1].file.write_bytes(b"")
        session.memory.unpark()
        return end(session, other, written)[1]


WAYS: dict[str, Callable[[Runs], Written]] = {
    "cold": lambda runs: cold(runs, STORY),
    "cache hit": cache_hit,
    "truncation": truncation,
    "fork": fork,
    "spill": spill,
    "parked": parked,
    "parked, damaged": lambda runs: parked(runs, damaged=True),
    "float reference, cache hit": lambda runs: cache_hit(runs, "float_reference"),
    "float reference, truncation": lambda runs: truncation(runs, "float_reference"),
}


SLOW = ("parked", "parked, damaged", "float reference, cache hit", "float reference, truncation")


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.thorough if way in SLOW else ()) for way in WAYS])
def test_rows_of_another_recipe_are_those_of_a_cold_run(path: Path, tmp_path: Path, way: str) -> None:
    runs = Runs(path, tmp_path / "files")
    device = "float_reference" if way.startswith("float") else "cpu"
    expected = cold(runs, STORY, device)
    assert WAYS[way](runs) == expected
    planted = Runs(path, tmp_path / "others", replace(CAUSAL, masks="any", least=4))
    assert WAYS[way](planted) != expected


@pytest.mark.parametrize("device", ["cpu", "float_reference"])
def test_a_state_that_is_forked_goes_on_with_the_rows_of_the_recipe(path: Path, device: str) -> None:
    recipe = choose_decoder("block").traits.recipe
    limits = Limits(nodes=8, depth=0, positions=64, cache_rows=256)
    target = open_target(Bundle.open(path), limits=limits, threads=1, device=device)
    ids = np.arange(5, 41, dtype=np.int32)

    def last(state: Any, text: I32) -> list[float]:
        make_rows(recipe, target, state, text[:-4], limits.nodes)
        work = replace(recipe.rows_pass(text, state.length, 4), logits=np.array([3], np.int32))
        (result,) = target.submit([(state, work)]).result()
        return [float(value) for value in result.logits[0]]

    whole, first = target.open(limits), target.open(limits)
    expected = last(whole, ids)
    make_rows(recipe, target, first, ids[:20], limits.nodes)
    forked = first.fork()
    assert last(forked, ids) == expected
    first.truncate(12)
    assert last(first, ids) == expected


def test_a_target_without_its_masks_refuses_the_decoder() -> None:
    """Rows of a recurrence follow a path."""
    message = "the rows of this decoder are blocks of 4, which takes masks of the form 'any', and this target computes"
    with pytest.raises(UnsupportedError, match=message):
        Session.open("demo-hybrid", threads=1, ctx_size=64, spec=SpecConfig(decoder="block"))


@pytest.mark.parametrize("least", [4, 8])
def test_texts_that_need_many_rows_share_passes(path: Path, least: int) -> None:
    """Prompts need 4 rows, and texts ``least``: each text is the one alone, and gets that many rows."""
    with Runs(path, path).open(sequences=8) as session:
        for decoder in session.scheduler.decoders:
            decoder.least_rows = least
        prompts = [f"{name} went into the wood" for name in ("Anna", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal")]
        alone = [end(session, begin(session, prompt))[0] for prompt in prompts]
        rooms = list[int]()
        plugin = load(DECODERS, "block")
        whole = plugin.BlockSequence.next_tree

        def seen(self: Any, room: Any) -> Any:
            rooms.append(room.rows)
            return whole(self, room)

        plugin.BlockSequence.next_tree = seen
        assert end(session, *(begin(session, prompt) for prompt in prompts)) == alone
        assert min(rooms) >= least


def test_passes_with_too_few_rows_are_refused_by_name(path: Path) -> None:
    with pytest.raises(
        UnsupportedError, match="this decoder needs passes of 4 rows, and the context and the device leave 3"
    ):
        Session.open(path, threads=1, ctx_size=3, spec=SpecConfig(decoder="block"))


def test_log_probabilities_of_a_prompt_are_refused_by_name(path: Path) -> None:
    message = "the rows of this decoder are blocks of 4, so that the tokens of a prompt have no log-probabilities"
    with Runs(path, path).open() as session, pytest.raises(UnsupportedError, match=message):
        session.generate(STORY, n_predict=2, logprobs=0, prompt_logprobs=True)


def test_settings_with_a_decoder_can_be_copied_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(SpecConfig(decoder="block:filler=3"))) == SpecConfig(decoder="block:filler=3")


def test_a_decoder_that_makes_no_guesses_takes_no_drafter() -> None:
    with pytest.raises(UsageError, match="--decoder block takes --spec-type none, not ngram; leave --spec-type out"):
        SpecConfig(decoder="block", drafter="ngram")


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_commands_take_the_decoder(edgedec: Edgedec, path: Path, tmp_path: Path) -> None:  # noqa: F811
    model = ("-m", str(path), "--decoder", "block", "-c", "128")
    options = (*model, "-p", "Once", "-n", "9", "--ignore-eos", "--temp", "0")
    done = edgedec("generate", *options, "--json")
    assert done.code == 0, done.stderr
    answer: dict[str, Any] = done.json
    expected, timings = answer["text"], answer["timings"]
    assert (timings["block"], timings["lossless"]) == ({"blocks": 2}, "exact")
    plain = edgedec("generate", *options)
    assert plain.stdout.rstrip("\n") == expected.rstrip("\n")
    assert "; decoder block: 2 blocks; lossless: exact" in plain.stderr
    other = edgedec("generate", *options[:3], "block:filler=7", *options[4:], "--json")
    assert other.json["text"] != expected

    planned: dict[str, Any] = edgedec("plan", *model, "--json").json
    assert (planned["decoder"], planned["drafter"], planned["tree_nodes"]) == ("block", "none", 1)
    assert "decoder block: the model fills blocks of four tokens\n" in edgedec("plan", *model).stdout

    requests, output = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    requests.write_text(3 * '{"prompt": "Once", "temperature": 0, "n_predict": 9, "ignore_eos": true}\n', "utf-8")
    assert edgedec("batch", str(requests), *model, "-o", str(output), "-np", "2").code == 0
    assert {json.loads(line)["text"] for line in output.read_text("utf-8").splitlines()} == {expected}

    unknown = edgedec("generate", *options[:3], "blok", *options[4:])
    assert "--decoder must be one of autoregressive, block, switch" in unknown.stderr


@pytest.mark.thorough
def test_a_conversation_and_the_server_take_the_decoder(edgedec: Edgedec, path: Path) -> None:  # noqa: F811
    spec = SpecConfig(decoder="block")

    def opened() -> Session:
        return Session.open(path, threads=1, ctx_size=128, sequences=2, spec=spec)

    with serving(opened) as server:
        fields = {"prompt": "Once", "n_predict": 9, "temperature": 0, "ignore_eos": True}
        first, again = (server.post("/completion", **fields).json() for _ in range(2))
    assert first["content"] == again["content"]
    with opened() as session:
        assert (
            session.generate("Once", n_predict=9, ignore_eos=True, sampling=SamplingConfig(temperature=0)).text
            == (first["content"])
        )
    chat = ("chat", "-m", "demo", "--decoder", "block", "-n", "4", "--temp", "0")
    done = edgedec(*chat, stdin="Hello\n")
    assert done.code == 0, done.stderr


@pytest.mark.thorough
def test_the_conformance_suite_takes_the_decoder(project_root: Path) -> None:
    suite = ("-p", "tests.runtime.decoders.support.with_third", "tests/conformance/test_decoders.py", "-k", "block")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *suite],
        cwd=project_root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_the_decoder_is_one_file_of_at_most_150_lines() -> None:
    assert [file.name for file in THIRD.glob("*.py")] == ["block.py"]
    assert len((THIRD / "block.py").read_text("utf-8").splitlines()) <= 150
