"""Test the choice of a policy by the planner, and that plans and counts of policies that choose keys are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.calibrated_bundle import with_policy, write_calibrated
from edgedec.errors import BudgetError, UsageError
from edgedec.onnx.kv_cache import BLOCK_ROWS
from edgedec.quantize.synthetic.random_bundle import SHAPES, write_random_bundle
from edgedec.runtime.drafters._files import file_uses
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import SpecConfig, create_drafter
from edgedec.runtime.protocols import Limits
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import _cpu_footprint
from tests.support.make_policies import MAKERS

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 128}
SIZES["max_position_embeddings"] = 4096


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    folder = tmp_path_factory.mktemp("bundles")
    tokenizer = (demo.bundle_path("demo") / "tokenizer.json").read_text("utf-8")
    write_random_bundle(folder / "plain", {**SHAPES["demo"], **SIZES}, tokenizer_json=tokenizer)
    plain = Bundle.open(folder / "plain")
    for kind, make in MAKERS.items():
        write_calibrated(plain, folder / kind, make(plain))
    return {path.name: Bundle.open(path) for path in folder.iterdir()}


def test_auto_takes_a_policy_only_where_it_makes_room(bundles: dict[str, Bundle]) -> None:
    """Streaming heads make room under a budget; labels alone need more memory, and so never do."""
    duo = bundles["duo"]
    free = make_plan(duo, RunSettings(threads=1, ctx_size=4096, kv_bits=16, kv_policy="auto"))
    assert (free.plan.kv_policy, free.bundle.config.get("kv_policy")) == ("full", None)
    own = make_plan(duo, RunSettings(threads=1, ctx_size=4096, kv_bits=16)).plan
    assert own.kv_policy == "duo"
    assert own.total_bytes < free.plan.total_bytes
    between = (own.total_bytes + free.plan.total_bytes) // 2
    tight = make_plan(duo, RunSettings(threads=1, ctx_size=4096, kv_bits=16, kv_policy="auto", budget_bytes=between))
    assert (tight.plan.kv_policy, tight.plan.fits, tight.bundle) == ("duo", True, duo)
    assert not make_plan(
        duo, RunSettings(threads=1, ctx_size=4096, kv_bits=16, kv_policy="full", budget_bytes=between)
    ).plan.fits
    selecting = make_plan(
        bundles["double-sparsity"], RunSettings(threads=1, kv_policy="auto", budget_bytes=between)
    ).plan
    assert selecting.kv_policy == "full"
    assert make_plan(bundles["plain"], RunSettings(threads=1, kv_policy="auto")).plan.kv_policy == "full"
    with pytest.raises(UsageError, match="--kv-policy asks for duo"):
        make_plan(bundles["plain"], RunSettings(threads=1, kv_policy="duo"))


def test_a_plan_has_the_labels(bundles: dict[str, Bundle]) -> None:
    """Two layers have a label of four bytes for each of four heads and position, and the last 24 keys of each head."""
    full = make_plan(with_policy(bundles["double-sparsity"], "full"), RunSettings(threads=1, ctx_size=1024)).plan
    plan = make_plan(bundles["double-sparsity"], RunSettings(threads=1, ctx_size=1024)).plan
    assert plan.items["kv"] == full.items["kv"]
    assert plan.items["kv_labels"] == 2 * 4 * 4 * 1024 + 64 + 2 * 4 * 24 * 8  # labels, counts, and the last choices
    assert "kv_labels" not in full.items
    assert plan.items["workspace"] > full.items["workspace"]
    assert "kv_labels" in plan.phases["run"]
    assert "kv_labels" not in plan.phases["load"]


@pytest.mark.parametrize("kind", ["nosa", "shadowkv"])
def test_auto_takes_a_policy_that_has_values_in_a_file_where_memory_is_short(
    bundles: dict[str, Bundle], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, Any] = {"threads": 1, "ctx_size": 4096, "kv_bits": 16}
    own, full = (make_plan(bundles[kind], RunSettings(kv_policy=name, **sizes)).plan for name in (kind, "full"))
    assert own.total_bytes < full.total_bytes
    (use,) = own.memories
    assert use.used_bytes == 2 * 4 * 4096 * 2 * 32  # layers, heads, rows, bytes of a row
    assert full.memories == ()
    sizes |= {"kv_policy": "auto", "budget_bytes": own.total_bytes}
    assert make_plan(bundles[kind], RunSettings(**sizes)).plan.kv_policy == kind
    monkeypatch.setattr(_cpu_footprint, "value_room", lambda nbytes: replace(use, has_bytes=nbytes - 1))
    assert make_plan(bundles[kind], RunSettings(**sizes)).plan.kv_policy == "full", "the disk has no room, either"


def test_the_draft_model_s_file_of_values_is_on_the_same_disk(
    bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundles["nosa"]
    sizes: dict[str, Any] = {"threads": 1, "ctx_size": 2048, "kv_bits": 16}
    spec = SpecConfig(drafter="model", draft=bundle.path, draft_max=7)
    alone, both = make_plan(bundle, RunSettings(**sizes)).plan, make_plan(bundle, RunSettings(spec=spec, **sizes)).plan
    (own,), (use,) = alone.memories, both.memories
    assert use.name == own.name
    assert use.used_bytes == own.used_bytes + _file_of_a_draft(2048, both.pass_rows)
    room = replace(use, has_bytes=use.used_bytes - 1)
    monkeypatch.setattr(_cpu_footprint, "value_room", lambda nbytes: replace(room, used_bytes=nbytes))
    make_plan(bundle, RunSettings(**sizes)).plan.require_memories()
    with pytest.raises(BudgetError, match="for a file of values"):
        make_plan(bundle, RunSettings(spec=spec, **sizes)).plan.require_memories()


def test_all_candidates_of_auto_count_their_files(bundles: dict[str, Bundle]) -> None:
    limits = Limits(nodes=8, depth=7, positions=2048)
    uses = [file_uses(create_drafter(name, bundles["nosa"]), limits) for name in ("model", "auto", "ngram")]
    assert [[use.used_bytes for use in some] for some in uses] == [*[[_file_of_a_draft(2048, 8)]] * 2, []]


def _file_of_a_draft(positions: int, rows: int) -> int:
    """Return the bytes of a file of layers, heads, rows and bytes of a row; a draft has room for a tree after the text."""
    return 2 * 4 * -(-(positions + rows) // BLOCK_ROWS) * BLOCK_ROWS * 2 * 32


def test_rows_of_values_are_those_of_the_request(bundles: dict[str, Bundle]) -> None:
    few, many = (
        make_plan(bundles["nosa"], RunSettings(threads=1, ctx_size=4096, value_rows=rows)) for rows in (0, 1000)
    )
    assert many.plan.items["kv_value_rows"] - few.plan.items["kv_value_rows"] == 2 * 4 * 1000 * (2 * 32 + 5)
    assert many.limits.value_rows == 1000
    with pytest.raises(UsageError, match="--value-rows must be 0 to"):
        make_plan(bundles["nosa"], RunSettings(value_rows=-1))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["nosa", "shadowkv"])
def test_a_run_with_values_in_a_file_stays_within_its_plan(bundles: dict[str, Bundle], kind: str) -> None:
    with Session.open(bundles[kind].path, threads=1, ctx_size=2048, kv_bits=16) as session:
        ids = session.tokenizer.encode("Once upon a time there was a little bear. " * 240)[:1900]
        answer = session.generate(ids, n_predict=100, sampling=SamplingConfig(temperature=0), ignore_eos=True)
        assert 0 < session.meter.peak_bytes <= session.run.plan.total_bytes
        assert session.run.plan.items["kv"] + session.run.plan.items["kv_value_rows"] < 2 * 4 * 2048 * 4 * 32
    keys = answer.timings.as_json()["keys"]
    assert keys["kept"] + keys["fetched"] == keys["read"]
    assert keys["hit_rate"] == pytest.approx(keys["kept"] / keys["read"], abs=1e-6)
    assert min(keys["kept"], keys["fetched"]) > 0


@pytest.mark.thorough
def test_a_run_stays_within_its_plan_and_counts_its_keys(bundles: dict[str, Bundle]) -> None:
    context, path = 1024, bundles["double-sparsity"].path
    sampling = SamplingConfig(temperature=0)
    with Session.open(path, threads=1, ctx_size=context, kv_bits=16) as session:
        ids = session.tokenizer.encode("Once upon a time there was a little bear. " * 120)[:900]
        answer = session.generate(ids, n_predict=40, sampling=sampling, ignore_eos=True)
        assert 0 < session.meter.peak_bytes <= session.run.plan.total_bytes
    keys = answer.timings.as_json()["keys"]
    rows = len(ids) + 39
    seen = 2 * 4 * rows * (rows + 1) // 2  # layers, heads, and the keys of each row
    assert keys["seen"] == seen
    assert keys["read"] == 2 * 4 * sum(min(row + 1, 24) for row in range(rows))
    assert keys["share"] == pytest.approx(keys["read"] / seen, abs=1e-6)
    labels = 2 * 4 * 4 * sum(row + 1 for row in range(rows) if row + 1 > 24)
    assert keys["read_bytes"] == labels + keys["read"] * 2 * 2 * 32
    with Session.open(path, threads=1, ctx_size=context, kv_policy="full") as session:
        assert "keys" not in session.generate(ids[:9], n_predict=2, sampling=sampling).timings.as_json()
