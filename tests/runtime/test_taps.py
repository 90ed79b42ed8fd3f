"""Values of the target for drafters: each row of a text has the right ones, wherever the cache has the row from.

The drafter here reads the outputs of three layers and keeps them beside the ids. When a text has ended they must be those
that a cold pass over all of its ids computes, also if rows were kept, shared, read from a file or parked.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.drafters._releasing import ReleasingDrafter
from edgedec.runtime.drafters.auto import _AutoDrafter
from edgedec.runtime.engine.spill import SpillFolder
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import (
    F32,
    I32,
    Bytes,
    CostModel,
    Draft,
    Drafter,
    Limits,
    Outcome,
    Sparse,
    TargetInfo,
    TokenTree,
)
from edgedec.runtime.row_recipe import CAUSAL
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.run_sizes import run_rows
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session import request_builder
from edgedec.runtime.session.answer import AnswerStream
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import open_target
from tests.conformance.test_targets import CONFIG
from tests.edgedec.cli.support.make_known_model import byte_tokenizer
from tests.support.gpu_here import need_gpu

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

TAPS = ("layers.0.out", "layers.1.out", "layers.2.out")
STORY = "Anna went into the wood and looked for berries, looked for berries, looked for berries, and found 3"


class Recorder:
    """A draft that keeps the values of each row. It guesses the next token of ``script``, a text, and one that is wrong."""

    def __init__(self, script: list[int]) -> None:
        self.script = script
        self.ids: list[int] = []
        self.rows: list[F32] = []  # the values of a row, one after another
        self.guessed = 0

    def tapped(self, ids: I32) -> int:
        most = min(len(ids), len(self.ids))
        differ = np.flatnonzero(np.array(self.ids[:most], np.int32) != ids[:most])
        return int(differ[0]) if len(differ) else most

    def keep_taps(self, ids: I32) -> None:
        assert self.tapped(ids) == len(ids)
        del self.ids[len(ids) :], self.rows[len(ids) :]

    def take_taps(self, ids: I32, taps: Mapping[str, F32]) -> None:
        count = len(taps[TAPS[0]])
        assert self.ids == ids[: len(ids) - count].tolist()
        self._append(ids[len(ids) - count :], taps)

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        if self.ids != text[:-1].tolist():  # the text is assumed while a pass runs
            return [Sparse(ids=np.zeros(0, np.int32), probs=np.zeros(0, np.float32))] * len(nodes)
        return [self._guess(len(text) + self._depth(tree, node)) for node in nodes.tolist()]

    def _depth(self, tree: TokenTree, node: int) -> int:
        return 0 if node == 0 else 1 + self._depth(tree, int(tree.parents[node]))

    def _guess(self, at: int) -> Sparse:
        self.guessed += 1
        right = self.script[at] if at < len(self.script) else 9
        return Sparse(ids=np.array([right, (right + 1) % 250], np.int32), probs=np.array([0.6, 0.4], np.float32))

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        self._append(tree.tokens[outcome.path], outcome.taps)

    def _append(self, ids: I32, taps: Mapping[str, F32]) -> None:
        self.ids += ids.tolist()
        self.rows += [np.concatenate([taps[name][row] for name in TAPS]) for row in range(len(ids))]


class RecordingDrafter:
    def __init__(self, taps: tuple[str, ...] = TAPS, script: Sequence[int] = ()) -> None:
        self.taps, self.script = taps, list(script)
        self.drafts: list[Recorder] = []

    def footprint(self, limits: Limits) -> Bytes:
        return {"draft_objects": 64 * 1024}

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> Draft:
        self.drafts.append(Recorder(self.script))
        return self.drafts[-1]


@pytest.fixture(autouse=True)
def one_round_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_builder, "_AHEAD_SECONDS", 0.0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "b"
    config = CONFIG | {"vocab_size": 264, "max_position_embeddings": 256, "num_hidden_layers": 3}
    write_random_bundle(path, config, "int8", tokenizer_json=byte_tokenizer().to_str())
    return path


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SpillFolder]:
    with SpillFolder(tmp_path / "files", model="m") as folder:
        yield folder


def open_session(
    path: Path, drafter: Drafter, *, sequences: int = 1, device: str = "cpu", policy: str = "dynamic"
) -> Session:
    spec = SpecConfig(drafter=drafter, draft_max=3, tree_nodes=6, policy=policy)
    return Session.open(path, threads=1, ctx_size=192, sequences=sequences, device=device, spec=spec)


def begin(session: Session, prompt: str, count: int = 12) -> AnswerStream:
    return session.stream(prompt, n_predict=count, ignore_eos=True, sampling=SamplingConfig(temperature=0.9, seed=3))


def end(session: Session, *streams: AnswerStream) -> None:
    """Write all texts to their ends, and raise what made one fail."""
    while not all(stream.ended for stream in streams):
        session.scheduler.step()
    for stream in streams:
        stream.take()
        stream.take()  # the error follows the pieces


def check(session: Session, draft: Recorder, device: str = "cpu") -> None:
    """Compare what the draft has with the values of cold passes."""
    assert draft.guessed > 0
    limits = session.run.limits
    target = open_target(
        session.bundle, device=device, limits=limits, threads=1, kv_bits=session.run.plan.kv_bits, taps=TAPS
    )
    state = target.open(limits)
    ids, rows = np.array(draft.ids, np.int32), []
    while state.length < len(ids):
        work = CAUSAL.rows_pass(ids, state.length, limits.nodes)
        work.taps = TAPS
        (result,) = target.submit([(state, work)]).result()
        rows.append(np.concatenate([result.taps[name] for name in TAPS], axis=1).copy())
        state.commit(np.arange(len(work.ids), dtype=np.int32))
    tolerance = 0.0 if target.info.batch_invariant else 1e-5
    np.testing.assert_allclose(np.array(draft.rows), np.concatenate(rows), rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def script(path: Path) -> list[int]:
    """Return the ids of the first prompt and of its text."""
    return ids_without_drafts(path, "cpu")


def ids_without_drafts(path: Path, device: str, count: int = 12) -> list[int]:
    with Session.open(path, threads=1, ctx_size=192, device=device) as session:
        stream = begin(session, STORY, count)
        end(session, stream)
        return [*session.encode(STORY).tolist(), *stream.answer.tokens]


@pytest.mark.parametrize("policy", ["chain", "dynamic"])
@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("float_reference", "gpu")),
        pytest.param(
            "interpreter", marks=pytest.mark.nightly
        ),  # tests/runtime/accelerator/test_tapped_texts.py is short
    ],
)
def test_the_rows_of_prompt_and_text_have_their_values(path: Path, script: list[int], device: str, policy: str) -> None:
    if device == "gpu":
        need_gpu()
    expected = ids_without_drafts(path, device) if device == "interpreter" else script
    drafter = RecordingDrafter(script=expected)
    with open_session(path, drafter, device=device, policy=policy) as session:
        width = CONFIG["hidden_size"]
        if device not in ("gpu", "interpreter"):
            assert session.run.plan.phases["run"]["taps"] == 2 * 4 * 3 * width * run_rows(session.run.limits)
        first = begin(session, STORY)
        end(session, first)
        (draft,) = drafter.drafts
        assert len(draft.ids) > len(STORY) + 8
        if device in ("cpu", "interpreter"):
            assert sum(first.answer.timings.rounds.accepted) > 0
            assert first.answer.tokens == expected[-12:]
        check(session, draft, device)
        for prompt, kept in ((STORY[:-9] + "got 4", 60), (STORY[:-9] + "got 4", 80), (STORY[:40], 30), (STORY, 30)):
            again = begin(session, prompt)  # rows of the text before are kept: the draft has their values
            end(session, again)
            assert again.answer.timings.prompt_kept > kept
            check(session, draft, device)


def test_rows_that_another_text_wrote_run_again(path: Path) -> None:
    drafter = RecordingDrafter()
    with open_session(path, drafter, sequences=2) as session:
        end(session, begin(session, STORY))
        other, second = begin(session, "Ben", 60), begin(session, STORY[:-9] + "got 4")
        end(session, second)
        assert second.answer.timings.prompt_kept == 0  # the rows are there; its draft lacks their values
        check(session, drafter.drafts[1])
        end(session, other)


def test_rows_of_a_text_that_is_being_written_run_again(path: Path) -> None:
    """They could be shared; the draft of the second text lacks their values, so it does not wait for them either."""
    drafter = RecordingDrafter()
    with open_session(path, drafter, sequences=2) as session:
        first, second = begin(session, STORY, 40), begin(session, STORY[:-1] + "5")
        session.scheduler.step()
        assert session.scheduler.waiting == 0
        end(session, first, second)
        assert second.answer.timings.prompt_kept == 0
        for draft in drafter.drafts:
            check(session, draft)


def test_rows_from_a_file_have_their_values(path: Path, disk: SpillFolder) -> None:
    drafter = RecordingDrafter()
    with open_session(path, drafter, sequences=2) as session:
        session.memory.keep_on_disk(disk)
        end(session, begin(session, STORY))
        session.memory.move_to_disk()
        second = begin(session, STORY[:-1] + "5")
        end(session, second)
        assert second.answer.timings.prompt_kept > 60
        ids = session.encode(STORY[:-1] + "5").tolist()
        assert drafter.drafts[0].ids[: len(ids)] == ids
        check(session, drafter.drafts[0])


def test_the_next_text_of_a_conversation_goes_to_the_draft_that_has_its_values(path: Path) -> None:
    drafter = RecordingDrafter()
    with open_session(path, drafter, sequences=2) as session:
        first, other = begin(session, STORY), begin(session, "Ben")
        end(session, first, other)
        for prompt in ("Ben went", STORY[:-1] + "5"):
            again = begin(session, prompt)
            end(session, again)
            assert again.answer.timings.prompt_kept >= 3
        for draft in drafter.drafts:
            check(session, draft)


def test_a_parked_text_keeps_its_values(path: Path, disk: SpillFolder) -> None:
    drafter = RecordingDrafter()
    with open_session(path, drafter, sequences=2) as session:
        session.memory.keep_on_disk(disk)
        other, parked = begin(session, "Ben", 60), begin(session, STORY)
        while not parked.answer.tokens:
            session.scheduler.step()
        session.memory.park()
        assert session.memory.parked == 1
        session.scheduler.step()
        session.memory.unpark()
        end(session, other, parked)
        for draft in drafter.drafts:
            check(session, draft)


def test_embeddings_beside_texts_leave_the_values_right(path: Path) -> None:
    drafter = RecordingDrafter()
    spec = SpecConfig(drafter=drafter, draft_max=3)
    with Session.open(path, threads=1, ctx_size=192, embeddings=True, spec=spec) as session:
        end(session, begin(session, STORY))
        assert len(session.embed(STORY[:50])) == CONFIG["hidden_size"]
        end(session, begin(session, STORY[:-1] + "5"))
        check(session, drafter.drafts[0])


@pytest.mark.parametrize("wrapped", ["auto", "releasing"])
def test_drafters_of_drafters_hand_the_values_on(path: Path, script: list[int], wrapped: str) -> None:
    inner = RecordingDrafter(script=script)
    drafter = ReleasingDrafter(lambda: inner) if wrapped == "releasing" else _AutoDrafter({"recorder": inner})
    with open_session(path, drafter) as session:
        end(session, begin(session, STORY))
        check(session, inner.drafts[0])


def test_a_drafter_that_is_loaded_again_waits_for_the_next_text(path: Path, script: list[int]) -> None:
    inner = RecordingDrafter(script=script)
    with open_session(path, ReleasingDrafter(lambda: inner)) as session:
        text = begin(session, STORY)
        while len(text.answer.tokens) < 3:
            session.scheduler.step()
        session.memory.release_drafter()
        session.scheduler.step()
        session.memory.restore_drafter()
        end(session, text)
        assert inner.drafts[-1].ids == []  # it lacks the rows before, so it got none after them
        end(session, begin(session, STORY[:-1] + "5"))
        check(session, inner.drafts[-1])


def test_texts_do_not_depend_on_what_a_drafter_reads(path: Path) -> None:
    with (
        open_session(path, RecordingDrafter(script=[])) as session,
        Session.open(path, threads=1, ctx_size=192) as plain,
    ):
        read, alone = begin(session, STORY, 40), begin(plain, STORY, 40)
        end(session, read)
        end(plain, alone)
    assert read.answer.tokens == alone.answer.tokens


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["layers.3.out", "final_norm", "nothing"])
def test_a_value_that_the_model_lacks_is_refused_before_it_is_loaded(path: Path, name: str) -> None:
    spec = SpecConfig(drafter=RecordingDrafter((name,)))
    message = rf"has no value '{name}' for every row \(it has layers.0.out to layers.2.out\); a drafter that reads it"
    with pytest.raises(UnsupportedError, match=message):
        make_plan(Bundle.open(path), RunSettings(spec=spec, ctx_size=64))


def test_a_board_refuses_values_by_name() -> None:
    message = (
        r"uart returns logits only, not layers\.0\.out, layers\.1\.out, layers\.2\.out: its program is that of a board"
    )
    with pytest.raises(UnsupportedError, match=message):
        Session.open("demo", device="uart:port", ctx_size=64, spec=SpecConfig(drafter=RecordingDrafter()))


# --- memory -----------------------------------------------------------------------------------------------------------

# script for a process of its own: the planned and the measured peak of a text that fills its context, with three values open
_PEAK = """
import sys
from edgedec import demo
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.session.session import Session
from tests.runtime.test_taps import RecordingDrafter, TAPS

class Reading(RecordingDrafter):
    # It keeps no values, so that those of the target and of the loop are measured.
    def open(self, target, limits, cost):
        draft = super().open(target, limits, cost)
        draft.take_taps = draft.keep_taps = lambda *_: None
        draft.tapped = lambda ids: 0
        draft.observe = lambda tree, outcome: seen.update({len(outcome.path): sum(map(len, outcome.taps.values()))})
        draft.expand = lambda text, tree, nodes: [draft._guess(len(text)) for _ in nodes]
        return draft

seen = {}
context, nodes, sequences = map(int, sys.argv[1:])
drafter = Reading(("layers.0.out", "layers.1.out", "layers.3.out"))
spec = SpecConfig(policy="dynamic", tree_nodes=nodes, drafter=drafter, draft_max=nodes - 1)
with Session.open(demo.bundle_path(), threads=1, ctx_size=context, sequences=sequences, spec=spec) as session:
    prompts = [demo.HELD_OUT.read_text("utf-8")[at : at + 2 * context] for at in range(sequences)]
    streams = [session.stream(prompt, ignore_eos=True) for prompt in prompts]
    while not all(stream.ended for stream in streams):
        session.scheduler.step()
    for stream in streams:
        stream.take(), stream.take()
        assert stream.answer.tokens
    assert seen[1] == 3
    print(session.run.plan.total_bytes, min(stream.answer.timings.peak_bytes for stream in streams),
          max(stream.answer.timings.peak_bytes for stream in streams))
"""
SIZES = [(context, nodes, texts) for context in (256, 512, 1024, 2048) for nodes, texts in ((2, 1), (16, 1), (64, 1))]
SIZES += [(context, nodes, texts) for context in (256, 512) for nodes in (4, 16) for texts in (2, 4)]


@pytest.mark.nightly(sample=2)
@pytest.mark.thorough
@pytest.mark.parametrize(("context", "nodes", "texts"), SIZES)
def test_the_peak_stays_within_the_plan(project_root: Path, context: int, nodes: int, texts: int) -> None:
    command = [sys.executable, "-c", _PEAK, *map(str, (context, nodes, texts))]
    done = subprocess.run(command, cwd=project_root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    planned, least, peak = map(int, done.stdout.split())
    assert 0 < least <= peak <= planned
