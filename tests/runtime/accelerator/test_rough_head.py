"""Test runs with a rough head: passes are those of the integer profile, and texts do not depend on drafter or loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.hw.compiler.shapes import shape_model
from edgedec.progress import silent
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.reference.integer_profile.head import real
from edgedec.reference.integer_profile.model import IntegerModel, prepare
from edgedec.runtime import loop
from edgedec.runtime.accelerator import rough_head
from edgedec.runtime.accelerator.calibrated import calibrated
from edgedec.runtime.accelerator.float_logits import float_logits
from edgedec.runtime.accelerator.model import buffer_bytes, prepare_model
from edgedec.runtime.accelerator.options import AcceleratorOptions, parse_configuration
from edgedec.runtime.accelerator.rough_head import rough_model
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import I32, Limits, Pass, PassResult, State
from edgedec.runtime.sampling.log_sum import log_sum
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets.accelerator import ProgramTarget
from tests.edgedec.reference.integer_profile.support.make_models import tiny
from tests.runtime.accelerator.support.tiny_config import CONFIG

LIMITS = Limits(nodes=4, depth=3, positions=64)
CANDIDATES = 5
GREEDY = SamplingConfig(temperature=0)
PROMPT = np.array(([5, 9, 12, 7] * 5)[:18], np.int32)


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "tiny"
    write_random_bundle(folder, {**CONFIG, "tie_word_embeddings": request.param}, method="ternary")
    return folder


def options(**members: Any) -> AcceleratorOptions:
    return AcceleratorOptions(overrides={"slots": 4, "rough_head": 2, "top_k": CANDIDATES, **members})


@pytest.fixture(params=[1, 2], ids=["one-plane", "two-planes"])
def target(path: Path, request: pytest.FixtureRequest) -> Iterator[ProgramTarget]:
    planes = options(rough_head=request.param)
    opened = open_target(Bundle.open(path), device="interpreter", limits=LIMITS, accelerator=planes)
    assert isinstance(opened, ProgramTarget)
    yield opened
    opened.close()


def defined(path: Path, planes: int = 2) -> IntegerModel:
    bundle = Bundle.open(path)
    return rough_model(bundle, prepare(bundle, calibrated(bundle)), planes, candidates=CANDIDATES, progress=silent)


def rows(n: int) -> I32:
    return np.arange(n, dtype=np.int32)


def run(target: ProgramTarget, state: State, ids: list[int], **asked: Any) -> PassResult:
    work = Pass(ids=np.array(ids, np.int32), positions=state.length + rows(len(ids)), logits=rows(len(ids)), **asked)
    (result,) = target.submit([(state, work)]).result()
    return result


@pytest.mark.parametrize("top_k", [0, 1, CANDIDATES])
def test_a_pass_is_that_of_the_profile(path: Path, target: ProgramTarget, top_k: int) -> None:
    sequence, state = defined(path, target.program.config.rough_head).open(), target.open(LIMITS)
    for ids in ([5, 6, 7], [9], [1, 2, 3, 4]):
        expected = float_logits(sequence.forward(np.array(ids, np.int32)))
        sequence.commit(rows(len(ids)))
        result = run(target, state, ids, top_k=top_k)
        state.commit(rows(len(ids)))
        present = np.isfinite(result.logits)
        assert present.sum(axis=1).tolist() == [CANDIDATES if top_k else 48] * len(ids)
        np.testing.assert_array_equal(result.logits[present], expected[present])
        best = np.argsort(-expected, axis=1, kind="stable")[:, :top_k]
        assert result.top is None if not top_k else np.array_equal(result.top.ids, best)  # type: ignore[union-attr]
    assert target.counters.passes == 3


def test_sums_do_not_depend_on_what_is_asked_for_beside_them(target: ProgramTarget) -> None:
    state = target.open(LIMITS)
    few, more = (run(target, state, [5, 6, 7], top_k=k, log_sum=True).top for k in (2, CANDIDATES + 1))
    assert few is not None
    assert more is not None
    assert few.log_sum is not None
    assert few.log_sum.tolist() == more.log_sum.tolist()  # type: ignore[union-attr]
    whole = run(target, state, [5, 6, 7]).logits
    # Logits that were lowered below the candidates' count more in the sum than in the row.
    assert (few.log_sum > [log_sum(row) - 3e-4 for row in whole]).all()


def test_a_row_whose_candidates_are_padding_has_the_sum_of_its_logits(
    path: Path, target: ProgramTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave the tokenizer so few ids that at least one row has no candidate among them."""
    state, chosen = target.open(LIMITS), options(rough_head=target.program.config.rough_head)
    whole = run(target, state, [5, 6, 7]).logits
    size = int(np.sort(whole.argsort(axis=1)[:, -CANDIDATES:].min(axis=1))[-1])
    tokens = replace(target.bundle.manifest.tokens, size=size)
    monkeypatch.setattr(Bundle, "tokens", property(lambda bundle: tokens))
    model = prepare_model(target.bundle, chosen, 64)
    with monkeypatch.context() as patch:
        patch.setattr("edgedec.runtime.targets.accelerator.prepare_model", lambda *args, **kwargs: model)
        opened = open_target(target.bundle, device="interpreter", limits=LIMITS, accelerator=chosen)
    assert isinstance(opened, ProgramTarget)
    assert opened.program.counted == size
    result = run(opened, opened.open(LIMITS), [5, 6, 7], top_k=1, log_sum=True)
    assert result.top is not None
    assert result.top.log_sum is not None
    assert opened.counters.passes == 2
    np.testing.assert_array_equal(result.top.ids[:, 0], whole[:, :size].argmax(axis=1))
    assert np.isfinite(result.top.log_sum).all()
    empty = ~(np.argsort(-whole, axis=1, kind="stable")[:, :CANDIDATES] < size).any(axis=1)
    assert empty.any()
    expected = [log_sum(row[:size]) for row in whole[empty]]
    assert result.top.log_sum[empty].tolist() == pytest.approx(expected, abs=3e-4)
    opened.close()


@contextmanager
def session(path: Path, drafter: str = "none", tree: str = "static", **members: Any) -> Iterator[Session]:
    spec, accelerator = SpecConfig(drafter=drafter, policy=tree), options(slots=8, **members)
    with Session.open(path, device="interpreter", accelerator=accelerator, spec=spec) as opened:
        yield opened


def text(path: Path, sampling: SamplingConfig = GREEDY, drafter: str = "none", **members: Any) -> list[int]:
    with session(path, drafter, **members) as opened:
        answer = opened.generate(PROMPT, n_predict=20, sampling=sampling, ignore_eos=True)
        assert drafter == "none" or answer.timings.rounds.drafted > 0
        return [*answer.tokens]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        SamplingConfig(temperature=1.1, top_k=4, top_p=0.9, seed=3),
        SamplingConfig(temperature=1.0, top_k=0, top_p=0.8, seed=6),
    ],
)
def test_a_text_does_not_depend_on_the_drafter(path: Path, sampling: SamplingConfig) -> None:
    plain = text(path, sampling)
    assert [text(path, sampling, drafter) for drafter in ("ngram", "stand")] == [plain, plain]


@pytest.mark.thorough
@pytest.mark.skipif(loop.load() is None, reason="the loop's library was not built (no C++ compiler)")
@pytest.mark.parametrize("drafter", ["none", "stand"])
@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        SamplingConfig(temperature=1.1, top_k=4, seed=3),  # the candidates are enough
        SamplingConfig(temperature=1.0, top_k=0, top_p=0.8, seed=6),  # whole rows are read
    ],
)
def test_the_compiled_loop_scores_again_as_python_does(path: Path, drafter: str, sampling: SamplingConfig) -> None:
    with session(path, drafter) as opened:
        compiled = opened.generate(PROMPT, n_predict=20, sampling=sampling, ignore_eos=True).tokens
        target = opened.target
        assert isinstance(target, ProgramTarget)
        assert target.compiled is not None
        assert target.compiled.arguments.passes > 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "load", lambda: None)
        assert text(path, sampling, drafter) == [*compiled]


@pytest.mark.thorough
def test_with_all_ids_as_candidates_a_text_is_that_of_the_int8_head(path: Path) -> None:
    for sampling in (GREEDY, SamplingConfig(temperature=1.0, top_k=0, seed=6)):
        whole = text(path, sampling, top_k=48)
        assert whole == text(path, sampling, rough_head=0, top_k=4)


@pytest.mark.thorough
@pytest.mark.parametrize("planes", [1, 2])
def test_a_greedy_text_is_that_of_the_profile(path: Path, planes: int) -> None:
    sequence, ids = defined(path, planes).open(), [*PROMPT.tolist()]
    for _ in range(20):
        new = np.array(ids[sequence.length :], np.int32)
        ids.append(int(real(sequence.forward(new))[-1].argmax()))
        sequence.commit(rows(len(new)))
    assert text(path, rough_head=planes) == ids[len(PROMPT) :]


def test_the_buffers_are_those_of_the_program(path: Path) -> None:
    bundle = Bundle.open(path)
    program, sizes = prepare_model(bundle, options(), 64).program, buffer_bytes(bundle, options(), 64)
    assert (sizes.by_name, sizes.taps) == (program.sizes, program.tap_bytes)
    assert sizes.taps > 0
    assert parse_configuration("board,rough_head=1") == ("board", {"rough_head": 1})


@pytest.mark.thorough
def test_planes_are_kept_and_damaged_ones_are_made_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rough_head, "cache_folder", lambda: tmp_path)
    first = defined(path)
    (file,) = (tmp_path / "rough-heads").iterdir()
    monkeypatch.setattr(rough_head, "quantize_rows", lambda *args: pytest.fail("they were kept"))
    name = next(name for name, one in first.constants.items() if getattr(one, "rescoring", None) is not None)

    def trits(model: IntegerModel) -> Any:
        return model.constants[name].matrices[0].trits

    assert np.array_equal(trits(defined(path)), trits(first))
    monkeypatch.undo()
    monkeypatch.setattr(rough_head, "cache_folder", lambda: tmp_path)
    content = dict(np.load(file))
    for damaged in (b"", b"PK\x03\x04nothing", None):
        if damaged is None:
            np.savez(file, codes=content["codes"][1:], scale=content["scale"])
        else:
            file.write_bytes(damaged)
        assert np.array_equal(trits(defined(path)), trits(first))
        assert sorted(dict(np.load(file))) == ["codes", "scale"]
    assert np.abs(trits(defined(path, planes=1))).max() == 1
    (other,) = {*(tmp_path / "rough-heads").iterdir()} - {file}
    other.write_bytes(file.read_bytes())  # weights up to 4, which one plane has not
    assert trits(defined(path, planes=1)).shape[0] == 1


def test_another_number_of_planes_is_refused(path: Path) -> None:
    for planes in (-1, 3):
        with pytest.raises(UsageError, match=f"rough_head must be 0 to 2, not {planes}"):
            buffer_bytes(Bundle.open(path), options(rough_head=planes), 64)


def test_a_ternary_head_is_refused_before_anything_is_computed() -> None:
    with pytest.raises(UnsupportedError, match="is ternary, and a rough head is made of an int8 head"):
        shape_model(tiny("bonsai")[0], rough_head=2)
