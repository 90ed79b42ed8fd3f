"""Test what the commands do and say in a control group with a memory limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edgedec.api import plan_run
from edgedec.bundle.bundle import Bundle
from edgedec.memory import budget as memory_budget
from edgedec.memory.budget import find_budget
from edgedec.memory.byte_sizes import format_bytes
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.planning.plan_search import planned_budget
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.run_settings import RunSettings
from tests.edgedec.cli.conftest import Edgedec
from tests.edgedec.cli.support.make_known_model import CONFIG, byte_tokenizer
from tests.edgedec.test_cgroups import MIB
from tests.edgedec.test_memory_budget import container

needs_kernels = pytest.mark.skipif(usable() is None, reason="needs the CPU kernels")

USED = 50 * MIB  # bytes that the control group uses already
Limit = Callable[[int], None]


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Return a function that puts this process into a control group with so many bytes of room."""

    def enter(room: int) -> None:
        root = container(tmp_path / "system", limit=USED + room, used=USED)
        monkeypatch.setattr(memory_budget, "find_budget", partial(find_budget, root=root))

    return enter


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose keys and values, 16 MiB, take more than its weights."""
    path, sizes = tmp_path_factory.mktemp("models") / "bundle", {"num_attention_heads": 8, "num_key_value_heads": 8}
    config = {**CONFIG, **sizes, "head_dim": 64, "num_hidden_layers": 4, "max_position_embeddings": 2048}
    write_random_bundle(path, config, "int8", tokenizer_json=byte_tokenizer().to_str())
    return path


@pytest.fixture(scope="module")
def sizes(bundle: Path) -> tuple[int, int]:
    """Return the bytes of the plan without a limit, and of the smallest plan."""
    return plan_run(bundle).total_bytes, plan_run(bundle, budget_bytes=1).total_bytes


def generated(edgedec: Edgedec, bundle: Path, *options: str) -> tuple[dict[str, Any], str]:
    outcome = edgedec("generate", "-m", bundle, "-p", "once", "-n", "5", "--temp", "0", "--json", *options)
    assert outcome.code == 0, outcome.stderr
    return outcome.json, outcome.stderr


@pytest.mark.thorough
def test_a_run_that_fits_is_as_without_a_limit(
    edgedec: Edgedec, bundle: Path, limit: Limit, sizes: tuple[int, int]
) -> None:
    plain, _ = generated(edgedec, bundle)
    limit(sizes[0])
    data, stderr = generated(edgedec, bundle)
    assert data["timings"]["planned_bytes"] == plain["timings"]["planned_bytes"] == sizes[0]
    assert data["tokens"] == plain["tokens"]
    assert "control group" not in stderr
    budget = data["budget"]
    assert (budget["bytes"], budget["bound_by"]) == (sizes[0], "cgroup")
    assert budget["limits"][0]["name"].endswith("memory.max")


def test_a_run_that_does_not_fit_is_planned_under_the_limit_and_says_so(
    edgedec: Edgedec, bundle: Path, limit: Limit, sizes: tuple[int, int]
) -> None:
    room = (sizes[0] + sizes[1]) // 2
    limit(room)
    data, stderr = generated(edgedec, bundle)
    assert data["timings"]["planned_bytes"] <= room < sizes[0]
    assert f"because the memory budget is {format_bytes(room)}, bounded by this control group, which has" in stderr


def test_a_limit_that_the_user_did_not_set_refuses_nothing(
    edgedec: Edgedec, bundle: Path, limit: Limit, sizes: tuple[int, int]
) -> None:
    limit(sizes[1] // 2)
    data, stderr = generated(edgedec, bundle)
    assert data["timings"]["planned_bytes"] == sizes[0]
    assert (
        f"this run may take {format_bytes(sizes[0])}, and the memory budget is {format_bytes(sizes[1] // 2)}" in stderr
    )
    assert "the system may end it" in stderr


@needs_kernels
@pytest.mark.thorough
def test_a_model_larger_than_the_limit_is_read_from_the_disk(edgedec: Edgedec, tmp_path: Path, limit: Limit) -> None:
    heavy = tmp_path / "heavy"
    config = {**CONFIG, "hidden_size": 512, "intermediate_size": 4096, "num_hidden_layers": 4}
    write_random_bundle(heavy, config, "int8", tokenizer_json=byte_tokenizer().to_str())
    plain, _ = generated(edgedec, heavy)
    assert "disk" not in plain["timings"]
    least, weights = plan_run(heavy, budget_bytes=1).total_bytes, plan_run(heavy).items["weights"]
    room = least + 4 * MIB
    assert room < weights
    limit(room)
    data, stderr = generated(edgedec, heavy)
    assert data["timings"]["planned_bytes"] <= room
    assert data["timings"]["disk"]["read_bytes"] > 0
    assert data["tokens"] == plain["tokens"]
    assert "bounded by this control group" in stderr


def test_a_budget_of_the_user_is_a_promise_under_every_limit(
    edgedec: Edgedec, bundle: Path, limit: Limit, sizes: tuple[int, int]
) -> None:
    limit(sizes[1] // 2)
    outcome = edgedec("generate", "-m", bundle, "-p", "?", "--memory-budget", f"{2 * sizes[0]}B")
    assert (outcome.code, outcome.stdout) == (4, "")
    assert f"the memory budget is {format_bytes(sizes[1] // 2)}:" in outcome.stderr
    assert (
        f"the memory budget is {format_bytes(sizes[1] // 2)}, bounded by this control group, which has"
        in outcome.stderr
    )
    limit(2 * sizes[0])
    data, stderr = generated(edgedec, bundle, "--memory-budget", f"{sizes[0]}B")
    assert (data["budget"]["bytes"], data["budget"]["bound_by"]) == (sizes[0], "flag")
    assert "control group" not in stderr


@pytest.mark.thorough
def test_chat_is_limited_too(edgedec: Edgedec, bundle: Path, limit: Limit, sizes: tuple[int, int]) -> None:
    limit((sizes[0] + sizes[1]) // 2)
    outcome = edgedec("chat", "-m", bundle, stdin="/exit\n")
    assert "bounded by this control group" in outcome.stderr


@pytest.mark.thorough
def test_the_log_says_what_bounds_the_run(edgedec: Edgedec, bundle: Path, limit: Limit, sizes: tuple[int, int]) -> None:
    limit(sizes[0])
    _, stderr = generated(edgedec, bundle, "-v")
    assert f"the memory budget is {format_bytes(sizes[0])}, bounded by this control group" in stderr


def test_a_plan_is_that_of_the_run_and_a_flag_may_be_for_another_machine(
    edgedec: Edgedec, bundle: Path, limit: Limit, sizes: tuple[int, int]
) -> None:
    room = (sizes[0] + sizes[1]) // 2
    limit(room)
    data: dict[str, Any] = edgedec("plan", "-m", bundle, "--json").json
    assert data["total_bytes"] <= room == data["budget_bytes"] == data["budget"]["bytes"]
    flag = f"{4 * sizes[0]}B"
    other: dict[str, Any] = edgedec("plan", "-m", bundle, "--memory-budget", flag, "--json").json
    assert other["budget_bytes"] == 4 * sizes[0]
    assert (other["budget"]["bytes"], other["budget"]["bound_by"]) == (room, "cgroup")
    text = edgedec("plan", "-m", bundle, "--memory-budget", flag).stdout
    assert (
        f"for a run that begins now, the memory budget is {format_bytes(room)}, bounded by this control group" in text
    )


@pytest.mark.thorough
def test_doctor_lists_the_limit(edgedec: Edgedec, limit: Limit) -> None:
    limit(100 * MIB)
    data: dict[str, Any] = edgedec("doctor", "--json").json
    assert (data["budget"]["bytes"], data["budget"]["bound_by"]) == (100 * MIB, "cgroup")
    (check,) = (check for check in data["checks"] if check["name"] == "memory")
    assert "150.0 MiB for this control group, 100.0 MiB of it free" in check["detail"]
    assert check["detail"].endswith("memory.max)")


@pytest.mark.parametrize("device", ["interpreter", "cuda", "webgpu", "replay:file"])
def test_devices_with_memory_of_their_own_are_not_limited_by_the_group(
    tmp_path: Path, bundle: Path, device: str
) -> None:
    budget = find_budget(root=container(tmp_path, limit=1))
    assert planned_budget(partial(make_plan, Bundle.open(bundle)), RunSettings(device=device), budget) is None


def test_the_settings_of_the_run_decide_whether_it_fits(tmp_path: Path, bundle: Path) -> None:
    opened = Bundle.open(bundle)
    small, large = (make_plan(opened, RunSettings(ctx_size=size, kv_bits=16)).plan.total_bytes for size in (128, 2048))
    budget = find_budget(root=container(tmp_path, limit=small))
    plan, long = partial(make_plan, opened), RunSettings(ctx_size=2048, kv_bits=16)
    assert planned_budget(plan, RunSettings(ctx_size=128), budget) is None
    assert planned_budget(plan, long, budget) is None, "no plan can make it fit"
    assert small + MIB < large
    roomy = find_budget(root=container(tmp_path, limit=small + MIB))
    assert planned_budget(plan, RunSettings(), roomy) == small + MIB
    assert planned_budget(plan, long, roomy) is None
