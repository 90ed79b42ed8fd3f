"""Test several draft models of one target: which drafters take them, what is planned for them, and that no text changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.borrowing_bundle import write_borrowing
from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.memory.plan import charged_bytes
from edgedec.quantize.synthetic.random_bundle import SHAPES
from edgedec.runtime.drafters import auto
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.planning import estimates
from edgedec.runtime.planning.drafter_figures import DrafterFigures
from edgedec.runtime.planning.planner import Planner, RunChoice
from edgedec.runtime.planning.planning import RunPlan, make_plan
from edgedec.runtime.planning.speculation import SpecConfig, create_drafter
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import onnx, target_module
from tests.support.make_borrowing import EMBEDDING, HEAD, SHAPE, Pair, write_model, write_pair

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

PROMPT = np.array([256, 65, 66, 67, 65, 66], np.int32)


@pytest.fixture(autouse=True)
def figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans assume that draft models are good and cheap, whatever the embedded one is."""
    monkeypatch.setattr(
        estimates,
        "drafter_figures",
        lambda name: DrafterFigures(acceptance=0.6 if name == "model" else 0.3, guess_seconds=100e-6),
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def costly(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return a target with passes so costly that a draft model pays, and two draft models for it, the first one smaller."""
    folder = tmp_path_factory.mktemp("costly")
    shape = {**SHAPES["demo"], "vocab_size": 512, "num_hidden_layers": 2}
    write_model(folder / "target", "native", shape | {"hidden_size": 1024, "intermediate_size": 8192}, seed=1)
    for name, width in (("narrow", 64), ("wide", 128)):
        config = {
            **SHAPE,
            "num_hidden_layers": 1,
            "hidden_size": width,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
        }
        write_model(folder / name, "int8", config, seed=2)
    return folder / "target", folder / "narrow", folder / "wide"


def spec_of(*drafts: Path, drafter: str = "auto") -> SpecConfig:
    return SpecConfig(drafter=drafter, draft=drafts, draft_max=4)


def plan_of(target: Path, *drafts: Path, **settings: Any) -> RunPlan:
    return make_plan(Bundle.open(target), RunSettings(threads=1, spec=spec_of(*drafts), **settings))


def test_one_draft_is_itself_and_none_is_none() -> None:
    assert SpecConfig(drafter="auto", draft=("a",)) == SpecConfig(drafter="auto", draft="a")
    assert SpecConfig(drafter="auto", draft=()) == SpecConfig(drafter="auto")
    assert SpecConfig(drafter="auto", draft=["a", "b"]).drafts == ("a", "b")  # type: ignore[arg-type]
    assert SpecConfig(drafter="auto", draft="a").drafts == ("a",)
    assert SpecConfig().drafts == ()


def test_drafters_of_one_model_refuse_more_by_name(pair: Pair) -> None:
    with pytest.raises(
        UsageError, match=r"--spec-type model takes one draft model, not 2 \(a, b\); give one -md, or --spec-type auto"
    ):
        SpecConfig(drafter="model", draft=("a", "b"))
    with pytest.raises(UsageError, match=r"--decoder switch takes one draft model, not 3 \(a, b, c\)"):
        SpecConfig(drafter="model", decoder="switch", draft=("a", "b", "c"))
    with pytest.raises(UsageError, match=r"-md names a 2 times; give each draft model once"):
        SpecConfig(drafter="auto", draft=("a", "b", "a"))
    with pytest.raises(UsageError, match="-md is for --spec-type model or auto, not ngram"):
        SpecConfig(drafter="ngram", draft=("a", "b"))
    with pytest.raises(UsageError, match="the drafter model takes one draft model, not 2"):
        create_drafter("model", [Bundle.open(pair.target), Bundle.open(pair.whole)])


def test_auto_plans_for_each_of_its_models(costly: tuple[Path, Path, Path]) -> None:
    target, *drafts = costly
    run = plan_of(target, *drafts, ctx_size=128)
    assert [draft.path for draft in run.drafts] == drafts
    assert run.plan.notes == ()
    each = [plan_of(target, draft, ctx_size=128).plan for draft in drafts]
    for name in ("draft_weights", "draft_kv", "draft_session"):
        assert run.plan.items[name] == sum(plan.items[name] for plan in each)
    assert run.plan.estimated_tokens_per_second == max(plan.estimated_tokens_per_second for plan in each)


def test_tables_of_positions_are_counted_for_those_that_do_not_share_them(
    pair: Pair, costly: tuple[Path, Path, Path]
) -> None:
    """Check a draft whose heads are as wide as the target's beside one with wider heads."""
    bundle, drafts = Bundle.open(pair.target), (Bundle.open(pair.whole), Bundle.open(costly[2]))
    settings, module = RunSettings(threads=1, spec=spec_of(pair.whole, costly[2])), target_module("cpu")
    planner = Planner(bundle=bundle, module=module, settings=settings, bounds=module.bounds(bundle, "cpu"))
    choice = RunChoice(spec=settings.spec or SpecConfig(), drafts=drafts, kv_bits=16, rows=32)
    limits = planner.limits(choice, 128)
    tables = [create_drafter("model", one, threads=1).footprint(limits)["draft_rotary_tables"] for one in drafts]
    assert planner.items(choice, 128)["draft_rotary_tables"] == tables[1]
    assert tables[0] > 0
    assert "draft_rotary_tables" not in planner.items(replace(choice, drafts=drafts[:1]), 128)


@pytest.mark.thorough
def test_a_plan_leaves_out_the_last_drafts_first_and_says_so(
    costly: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx, "least_weights", lambda bundle: None)
    target, *drafts = costly
    whole = plan_of(target, *drafts, ctx_size=128).plan.total_bytes
    counts = []
    for budget in range(whole, whole - (4 << 20), -(1 << 18)):
        run = plan_of(target, *drafts, ctx_size=128, kv_bits=16, budget_bytes=budget)
        if not run.plan.fits:
            break
        assert run.plan.total_bytes == charged_bytes(run.plan.items) <= budget
        assert [draft.path for draft in run.drafts] == drafts[: len(run.drafts)]
        assert run.plan.draft_model == bool(run.drafts)
        left_out = drafts[len(run.drafts) :]
        assert [str(draft) in note for draft, note in zip(left_out, run.plan.notes, strict=True)] == [True] * len(
            left_out
        )
        counts.append(len(run.drafts))
    assert counts[0] == 2
    assert 1 in counts


def test_auto_names_its_models_by_their_number(pair: Pair) -> None:
    drafter = auto.create([Bundle.open(pair.whole), Bundle.open(pair.target)])
    assert list(drafter._drafters) == ["copy", "ngram", "model", "model 2"]


@pytest.mark.thorough
def test_no_text_depends_on_the_number_of_drafts(costly: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Check none, one, two, and two beside one that borrows the target's head and embedding."""
    target, *drafts = costly
    shared = {**Bundle.open(target).config, "num_hidden_layers": 1, "intermediate_size": 64}
    write_model(tmp_path / "whole", "native", shared, seed=3, like=target, shared=(EMBEDDING, HEAD))
    assert set(write_borrowing(Bundle.open(tmp_path / "whole"), Bundle.open(target), tmp_path / "lent")) >= {
        EMBEDDING,
        HEAD,
    }
    sampling, texts = SamplingConfig(temperature=0.8, seed=3), []
    for some in ((), drafts[:1], drafts, [*drafts, tmp_path / "lent"], [tmp_path / "lent"]):
        with Session.open(target, threads=1, ctx_size=128, spec=spec_of(*some)) as session:
            assert len(session.run.drafts) == len(some)
            texts.append(session.generate(PROMPT, n_predict=24, sampling=sampling, ignore_eos=True).tokens)
    assert all(text == texts[0] for text in texts)


@pytest.mark.thorough
def test_all_models_of_auto_guess(costly: tuple[Path, Path, Path]) -> None:
    """Check that both are opened and asked, and that a released drafter forgets both and opens both again."""
    (target, *drafts), greedy = costly, SamplingConfig(temperature=0.0)
    with Session.open(target, threads=1, ctx_size=128, spec=spec_of(*drafts)) as session:
        expected = session.generate(PROMPT, n_predict=24, sampling=greedy, ignore_eos=True).tokens
        decoder: Any = session.decoder
        candidates = decoder.drafter._drafter._drafters
        models = [candidates[name]._loaded for name in ("model", "model 2")]
        assert all(loaded is not None for loaded in models)
        assert [one.observed.read > 0 for one in decoder._draft.inner._candidates if one.name.startswith("model")] == [
            True,
            True,
        ]
        session.memory.release_drafter()
        assert session.generate(PROMPT, n_predict=24, sampling=greedy, ignore_eos=True).tokens == expected
        session.memory.restore_drafter()
        assert set(decoder.drafter._drafter._drafters) >= {"model", "model 2"}
        assert session.generate(PROMPT, n_predict=24, sampling=greedy, ignore_eos=True).tokens == expected
