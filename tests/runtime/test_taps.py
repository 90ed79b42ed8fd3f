"""Values of the target for drafters: each row of a text has the right ones, wherever the cache has the row from.

The drafter here reads the outputs of three layers and keeps them beside the ids. When a text has ended they must be those
that a cold pass over all of its ids computes, also if rows were kept, shared, read from a file or parked.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import EdgedecError, UnsupportedError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.engine.spill import SpillFolder
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import F32, I32, Bytes, CostModel, Draft, Limits, Outcome, Sparse, TargetInfo, TokenTree
from edgedec.runtime.row_recipe import CAUSAL
from edgedec.runtime.run_settings import RunSettings
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
    """A draft that keeps the values of each row, and guesses a token that is seldom right."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.rows: list[F32] = []  # the values of a row, one after another
        self.asked = 0  # guesses after texts of which all rows have values

    def tapped(self, ids: I32) -> int:
        most = min(len(ids), len(self.ids))
        differ = np.flatnonzero(np.array(self.ids[:most], np.int32) != ids[:most])
        return int(differ[0]) if len(differ) else most

    def take_taps(self, ids: I32, taps: Mapping[str, F32]) -> None:
        count = len(taps[TAPS[0]])
        self._append(len(ids) - count, ids[len(ids) - count :], taps)

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        if len(tree.tokens) == 1:
            assert self.ids == text[:-1].tolist()
            self.asked += 1
        return [Sparse(ids=np.array([7], np.int32), probs=np.ones(1, np.float32)) for _ in nodes]

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        self._append(len(self.ids), tree.tokens[outcome.path], outcome.taps)

    def _append(self, start: int, ids: I32, taps: Mapping[str, F32]) -> None:
        del self.ids[start:], self.rows[start:]
        assert len(self.ids) == start
        self.ids += ids.tolist()
        self.rows += [np.concatenate([taps[name][row] for name in TAPS]) for row in range(len(ids))]


class RecordingDrafter:
    def __init__(self, taps: tuple[str, ...] = TAPS) -> None:
        self.taps = taps
        self.drafts: list[Recorder] = []

    def footprint(self, limits: Limits) -> Bytes:
        return {"draft_objects": 64 * 1024}

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> Draft:
        self.drafts.append(Recorder())
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


def open_session(path: Path, drafter: RecordingDrafter, *, sequences: int = 1, device: str = "cpu") -> Session:
    spec = SpecConfig(drafter=drafter, draft_max=3)
    return Session.open(path, threads=1, ctx_size=192, sequences=sequences, device=device, spec=spec)


def begin(session: Session, prompt: str, count: int = 12) -> AnswerStream:
    return session.stream(prompt, n_predict=count, ignore_eos=True, sampling=SamplingConfig(temperature=0.9, seed=3))


def end(session: Session, *streams: AnswerStream) -> None:
    while not all(stream.ended for stream in streams):
        session.scheduler.step()


def check(session: Session, draft: Recorder, device: str = "cpu") -> None:
    """Compare what the draft has with the values of cold passes."""
    assert draft.asked > 0
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


@pytest.mark.parametrize("device", ["cpu", "float_reference", pytest.param("gpu", marks=pytest.mark.thorough)])
def test_the_rows_of_prompt_and_text_have_their_values(path: Path, device: str) -> None:
    if device == "gpu":
        need_gpu()
    drafter = RecordingDrafter()
    with open_session(path, drafter, device=device) as session:
        assert session.run.plan.phases["run"]["taps"] == 2 * 4 * 3 * CONFIG["hidden_size"] * session.run.limits.nodes
        end(session, begin(session, STORY))
        (draft,) = drafter.drafts
        assert len(draft.ids) > len(STORY) + 8
        check(session, draft, device)
        second = begin(session, STORY[:-9] + "got 4")  # rows of the first text are kept: the draft has their values
        end(session, second)
        assert second.answer.timings.prompt_kept > 60
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


def test_forked_rows_have_their_values(path: Path) -> None:
    drafter = RecordingDrafter()
    with open_session(path, drafter, sequences=2) as session:
        first = begin(session, STORY, 40)
        for _ in range(8):
            session.scheduler.step()
        second = begin(session, STORY[:-1] + "5")
        end(session, first, second)
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
        check(session, drafter.drafts[0])


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


def test_texts_do_not_depend_on_what_a_drafter_reads(path: Path) -> None:
    with open_session(path, RecordingDrafter()) as session, Session.open(path, threads=1, ctx_size=192) as plain:
        read, alone = begin(session, STORY, 40), begin(plain, STORY, 40)
        end(session, read)
        end(plain, alone)
    assert read.answer.tokens == alone.answer.tokens


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["layers.3.out", "final_norm", "nothing"])
def test_a_value_that_the_model_lacks_is_refused_before_it_is_loaded(path: Path, name: str) -> None:
    spec = SpecConfig(drafter=RecordingDrafter((name,)))
    message = rf"has no value '{name}' for every row \(it has layers.0.out to layers.2.out\), and the drafter reads it"
    with pytest.raises(UnsupportedError, match=message):
        make_plan(Bundle.open(path), RunSettings(spec=spec, ctx_size=64))


def test_an_accelerator_refuses_values_by_name(path: Path) -> None:
    with pytest.raises(EdgedecError, match=r"layers.0.out"):
        Session.open("demo", device="interpreter", ctx_size=64, spec=SpecConfig(drafter=RecordingDrafter()))


# --- memory -----------------------------------------------------------------------------------------------------------

# script for a process of its own: the planned and the measured peak of a text that fills its context, with three values open
_PEAK = """
import sys
from edgedec import demo
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.session.session import Session
from tests.runtime.test_taps import RecordingDrafter, TAPS

class Forgetful(RecordingDrafter):
    def open(self, target, limits, cost):
        draft = super().open(target, limits, cost)
        draft.take_taps = draft.observe = lambda *_: None
        draft.expand = lambda text, tree, nodes: []
        draft.tapped = lambda ids: 0
        return draft

context, nodes, sequences = map(int, sys.argv[1:])
spec = SpecConfig(drafter=Forgetful(("layers.0.out", "layers.1.out", "layers.3.out")), draft_max=nodes - 1)
with Session.open(demo.bundle_path(), threads=1, ctx_size=context, sequences=sequences, spec=spec) as session:
    prompts = [demo.HELD_OUT.read_text("utf-8")[at : at + 2 * context] for at in range(sequences)]
    streams = [session.stream(prompt, ignore_eos=True) for prompt in prompts]
    while not all(stream.ended for stream in streams):
        session.scheduler.step()
    print(session.run.plan.total_bytes, max(stream.answer.timings.peak_bytes for stream in streams))
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
    planned, peak = map(int, done.stdout.split())
    assert peak <= planned
