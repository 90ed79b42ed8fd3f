"""Test ``inspect``, ``plan``, ``eval``, ``bench`` and ``doctor``: their JSON is a contract, their text is for people."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.bundle.manifest import Tokens
from edgedec.calibrated_bundle import write_calibrated
from edgedec.cli import doctor as doctor_module
from edgedec.memory.byte_sizes import format_bytes
from edgedec.memory.plan import phases
from edgedec.runtime.base.cores import physical_cores
from edgedec.runtime.kernels import KERNEL_NAMES
from edgedec.runtime.measure import guesses
from edgedec.runtime.measure import speed as bench_module
from edgedec.schemes import FloatScheme
from tests.edgedec.cli.conftest import Edgedec
from tests.edgedec.cli.support.make_known_model import BOS, ENDLESS, EOS, byte_tokenizer
from tests.support.make_policies import MAKERS

# docs


@pytest.mark.thorough
def test_every_key_is_documented(edgedec: Edgedec, bundle: Path, project_root: Path) -> None:
    text = (project_root / "docs" / "command-line.md").read_text("utf-8")
    commands = (
        ("inspect", bundle, "--render-chat"),
        ("plan", "-m", bundle, "--spec-type", "ngram"),
        ("generate", "-m", bundle, "-p", "?"),
        ("eval", "-m", bundle, "--text", "-"),
        ("doctor",),
    )
    for command in commands:
        section = text.partition(f"\n## {command[0]}\n")[2].partition("\n## ")[0]
        data = edgedec(*command, "--json", stdin="o").json
        timings = data.pop("timings", {})
        assert isinstance(timings, dict)
        for key in [*data, *(f"timings.{key}" for key in timings)]:
            assert f"`{key}`" in section, f"{command[0]}: {key}"


# inspect


def test_inspect_json_is_complete(edgedec: Edgedec, bundle: Path) -> None:
    data: dict[str, Any] = edgedec("inspect", bundle, "--json").json
    assert set(data) == {
        "path",
        "created_by",
        "sha256",
        "requires",
        "family",
        "config",
        "context",
        "kv_policy",
        "quantization",
        "parameters",
        "weight_bytes",
        "bits_per_weight",
        "schemes",
        "tokens",
        "chat_template",
        "files",
        "borrows",
    }
    opened = Bundle.open(bundle)
    assert (data["family"], data["context"], data["chat_template"]) == ("llama", 4096, True)
    assert data["tokens"] == {"size": 258, "bos": BOS, "eos": [EOS]}
    assert data["quantization"]["method"] == "float"
    assert data["weight_bytes"] == sum(tensor.nbytes for tensor in opened.tensors.values())
    assert data["bits_per_weight"] == 32
    (scheme,) = data["schemes"]
    assert scheme == {
        "kind": "float",
        "dtype": "float32",
        "tensors": len(opened.tensors),
        "weights": data["parameters"],
        "bytes": data["weight_bytes"],
    }
    for name, entry in data["files"].items():
        content = (bundle / name).read_bytes()
        assert entry == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_inspect_text_has_the_main_figures(edgedec: Edgedec, bundle: Path) -> None:
    text = edgedec("inspect", bundle).stdout
    for part in ("llama", "4096 tokens", "32.00 bits per weight", "chat template  ", "weights.bin", "float32"):
        assert part in text


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(
    ("quantization", "row"),
    [
        ({"method": "int8", "planes": 0, "group_size": 0, "parameters": 7, "bits_per_weight": 8.5}, "int8"),
        (
            {"method": "ternary", "planes": 2, "group_size": 64, "parameters": "many"},
            "ternary, planes 2, group size 64",
        ),
        ({"parameters": [], "by": {"hand": 1}}, "unknown, by {'hand': 1}"),
    ],
)
@pytest.mark.parametrize("rows", [0, 3])
def test_inspect_reads_manifests_with_any_quantization(
    edgedec: Edgedec, tmp_path: Path, quantization: dict[str, Any], row: str, rows: int
) -> None:
    """Vary the manifest's ``quantization``, which may hold anything, and a bundle without tensors."""
    path = tmp_path / "foreign"
    with BundleWriter.create(path) as writer:
        if rows:
            writer.add("w", FloatScheme(), (rows, 2), {"values": np.ones((rows, 2), np.float32)})
        writer.finish(
            config={},
            quantization=quantization,
            tokens=Tokens(size=258, bos=BOS, eos=(EOS,)),
            tokenizer_json=byte_tokenizer().to_str(),
            chat_template=None,
        )
    data = edgedec("inspect", path, "--json").json
    assert (data["parameters"], data["bits_per_weight"]) == (2 * rows, 32 if rows else 0)
    lines = edgedec("inspect", path).stdout.splitlines()
    assert [line.removeprefix("method").strip() for line in lines if line.startswith("method")] == [row]


def test_inspect_renders_a_chat(edgedec: Edgedec, bundle: Path, mute_bundle: Path) -> None:
    expected = "<s>[user]Hello![assistant]Hello! How can I help you?[user]Tell me a story."
    assert edgedec("inspect", bundle, "--render-chat").stdout == expected + "\n"
    assert edgedec("inspect", bundle, "--render-chat", "--json").json["rendered_chat"] == expected
    outcome = edgedec("inspect", mute_bundle, "--render-chat")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "no chat template" in outcome.stderr


# plan

PLAN = {
    "fits",
    "budget",
    "budget_bytes",
    "total_bytes",
    "items",
    "phases",
    "baseline_bytes",
    "driver_bytes",
    "resident_bytes",
    "ctx_size",
    "kv_bits",
    "whole_ctx_size",
    "whole_kv_bits",
    "kv_policy",
    "decoder",
    "drafter",
    "draft_model",
    "draft_tokens",
    "tree",
    "memories",
    "notes",
    "disk",
    "tree_nodes",
    "pass_rows",
    "estimated_tokens_per_second",
    "fixed_baseline",
    "speculation_from_bytes",
}


def test_plan_without_a_budget_fits(edgedec: Edgedec, bundle: Path) -> None:
    data: dict[str, Any] = edgedec("plan", "-m", bundle, "-c", "100", "--json").json
    assert set(data) == PLAN
    assert (data["fits"], data["budget_bytes"], data["ctx_size"]) == (True, None, 100)
    assert list(data["phases"]) == ["load", "run"]
    assert data["total_bytes"] == max(data["phases"].values()) <= sum(data["items"].values())
    assert (data["drafter"], data["draft_model"], data["draft_tokens"]) == ("none", False, 0)
    assert (data["tree"], data["tree_nodes"], data["speculation_from_bytes"]) == ("chain", 1, None)
    assert data["baseline_bytes"] > 10 << 20, "NumPy is imported"
    assert data["resident_bytes"] > data["baseline_bytes"], "their code is in memory too"


def test_plan_over_the_budget_fails(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("plan", "-m", bundle, "--memory-budget", "2MiB", "--json")
    assert outcome.code == 4
    assert set(outcome.json) == PLAN
    assert (outcome.json["fits"], outcome.json["budget_bytes"]) == (False, 2 << 20)
    assert "the memory budget is 2.0 MiB; try --" in outcome.stderr


def test_the_hint_of_a_plan_is_true(edgedec: Edgedec, bundle: Path) -> None:
    hint = edgedec("plan", "-m", bundle, "-c", "4096", "--memory-budget", "4MiB").stderr
    size = hint.partition("--memory-budget ")[2].split()[0]
    assert edgedec("plan", "-m", bundle, "-c", "4096", "--memory-budget", size).code == 0


def test_plan_text_is_a_table(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("plan", "-m", bundle, "--memory-budget", "100MiB")
    assert outcome.code == 0
    for line in ("context 2048 tokens", "weights ", "kv ", "total ", "budget  ", "100.0 MiB", "fits "):
        assert line in outcome.stdout


def test_plan_lists_the_memory_of_speculation(edgedec: Edgedec, bundle: Path) -> None:
    options = ("-m", bundle, "--spec-type", "model", "-md", bundle, "--draft-max", "3", "--spec-tree", "dynamic")
    data: dict[str, Any] = edgedec("plan", *options, "--tree-nodes", "6", "--json").json
    assert set(data) == PLAN
    assert (data["drafter"], data["draft_model"]) == ("model", True)
    assert (data["draft_tokens"], data["tree"], data["tree_nodes"]) == (3, "dynamic", 6)
    assert data["items"]["draft_weights"] == data["items"]["weights"]
    assert list(data["phases"]) == ["load", "load_draft", "run"]
    assert data["total_bytes"] == max(data["phases"].values()) <= sum(data["items"].values())
    missing = set(data["items"]) - set(data["fixed_baseline"])
    assert missing == {
        *("weights", "draft_weights", "load_transient", "self_test", "tokenizer_transient", "draft_load_transient")
    }
    assert data["fixed_baseline"]["logits"] >= 64 * 264 * 4
    assert data["estimated_tokens_per_second"] > 0


@pytest.mark.thorough
def test_the_budget_decides_whether_a_draft_model_is_used(edgedec: Edgedec, bundle: Path) -> None:
    options = ("plan", "-m", bundle, "-c", "128", "--spec-type", "auto", "--json")
    small: dict[str, Any] = edgedec(*options).json
    data: dict[str, Any] = edgedec(*options, "-md", bundle, "--memory-budget", str(small["total_bytes"])).json
    assert (data["fits"], data["drafter"], data["draft_model"]) == (True, "auto", False)
    assert not {"draft_weights"} & set(data["items"])


def test_plan_lists_the_memory_of_both_models_of_a_switch(edgedec: Edgedec, bundle: Path) -> None:
    options = ("plan", "-m", bundle, "-c", "128", "--json")
    plain: dict[str, Any] = edgedec(*options).json
    data: dict[str, Any] = edgedec(*options, "--decoder", "switch", "-md", bundle).json
    assert set(data) == PLAN
    assert (data["decoder"], data["draft_model"], data["tree_nodes"]) == ("switch", True, 1)
    assert data["items"]["draft_weights"] == data["items"]["weights"]
    # All rows of a pass have logits, because the two models are compared.
    assert data["items"]["logits"] - plain["items"]["logits"] >= 4 * 264 * (data["pass_rows"] - 1)
    assert data["estimated_tokens_per_second"] < plain["estimated_tokens_per_second"]
    text = edgedec("plan", "-m", bundle, "-c", "128", "--decoder", "switch", "-md", bundle).stdout
    assert text.splitlines()[1].startswith("decoder switch: the draft model writes where it is certain")


def test_plan_text_lists_the_memory_of_speculation(edgedec: Edgedec, bundle: Path) -> None:
    options = ("plan", "-m", bundle, "--spec-type", "ngram", "--tree-nodes", "5")
    data: dict[str, Any] = edgedec(*options, "--json").json
    lines = edgedec(*options).stdout.splitlines()
    assert lines[1] == "drafter ngram: 4 guesses ahead at most; tree chain of 5 nodes at most"
    assert lines[2].startswith("estimated, not measured: ")
    cells = {line.split("  ")[0]: line.split("  ")[1:] for line in lines}
    at_once = phases(data["items"])
    columns = [*at_once.values(), data["fixed_baseline"]]
    for name in data["items"]:
        texts = [cell.strip() for cell in cells[name] if cell.strip()]
        assert texts == [format_bytes(column[name]) for column in columns if name in column], name
    sums = [cell.strip() for cell in cells["sum"] if cell.strip()]
    assert sums == [format_bytes(sum(column.values())) for column in at_once.values()]
    assert next(cell.strip() for cell in cells["total"] if cell) == format_bytes(data["total_bytes"])


# eval


def test_eval_json_is_complete(edgedec: Edgedec, bundle: Path) -> None:
    text = "o" + ENDLESS * 20
    Path("a text.txt").write_text(text)
    data: dict[str, Any] = edgedec("eval", "-m", bundle, "--text", "a text.txt", "--json").json
    assert set(data) == {"kv_policy", "perplexity", "tokens", "nats_per_token", "bits_per_byte", "ctx_size", "seconds"}
    assert data["tokens"] == len(text.encode())
    assert data["ctx_size"] == 512
    assert 1 < data["perplexity"] < 1.5, "the model knows this text"
    assert math.exp(data["nats_per_token"]) == pytest.approx(data["perplexity"])
    assert data["bits_per_byte"] == pytest.approx(math.log2(data["perplexity"]))


def test_eval_scores_every_token_once_for_any_window(edgedec: Edgedec, bundle: Path) -> None:
    Path("text").write_text("to be or not to be")
    for ctx_size in ("2", "5", "19", "4096"):
        assert edgedec("eval", "-m", bundle, "--text", "text", "-c", ctx_size, "--json").json["tokens"] == 18


def test_eval_devices_agree(edgedec: Edgedec, bundle: Path) -> None:
    perplexities = [
        edgedec("eval", "-m", bundle, "--text", "-", "-c", "32", "--device", device, "--json", stdin="hello, o").json
        for device in ("cpu", "float_reference")
    ]
    assert perplexities[0]["perplexity"] == pytest.approx(perplexities[1]["perplexity"], rel=1e-4)


def test_eval_text_is_a_table(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("eval", "-m", bundle, "--text", "-", stdin="o")
    assert outcome.stdout.startswith("perplexity ")


# bench


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "_MOST_ROUNDS", 2)


BENCH = {
    "predicted_per_second",
    "prompt_per_second",
    "pass_ms",
    "threads",
    "device",
    "kernel",
    "shape",
    "model",
    "method",
    "rounds",
    "guesses",
    "kv_policy",
}


@pytest.mark.thorough
@pytest.mark.usefixtures("quick")
def test_bench_of_a_shape_keeps_its_weights(edgedec: Edgedec, tmp_path: Path) -> None:
    options = ("bench", "--shape", "demo", "--method", "int8", "--threads", "1", "--json")
    data: dict[str, Any] = edgedec(*options).json
    assert set(data) == BENCH
    assert list(data["pass_ms"]) == ["1", "2", "4", "8", "16", "32"]
    assert all(ms > 0 for ms in data["pass_ms"].values())
    assert min(data["predicted_per_second"], data["prompt_per_second"]) > 0
    assert (data["threads"], data["device"]) == (1, "cpu")
    assert (data["shape"], data["model"], data["method"]) == ("demo", None, "int8")
    assert data["guesses"] is None

    (entry,) = (tmp_path / "cache" / "edgedec" / "bench").iterdir()
    written_ns = (entry / "weights.bin").stat().st_mtime_ns
    assert edgedec(*options).code == 0
    assert (entry / "weights.bin").stat().st_mtime_ns == written_ns, "the kept bundle is used again"
    (entry / "weights.bin").write_bytes(b"")
    outcome = edgedec(*options)
    assert outcome.code == 0
    assert "damaged; making it again" in outcome.stderr


@pytest.mark.usefixtures("quick")
def test_bench_measures_a_bundle(edgedec: Edgedec, bundle: Path) -> None:
    data = edgedec("bench", "-m", bundle, "--json").json
    assert (data["shape"], data["model"], data["method"]) == (None, str(bundle), "float")
    assert data["threads"] == physical_cores()
    text = edgedec("bench", "-m", bundle, "-t", "1").stdout
    assert data["kernel"] in KERNEL_NAMES
    assert f"measured on this machine: device cpu, kernel {data['kernel']}, 1 threads" in text
    assert "pass of 32" in text


@pytest.mark.usefixtures("quick")
def test_bench_measures_the_policy_of_a_bundle_or_none(edgedec: Edgedec, bundle: Path, tmp_path: Path) -> None:
    plain = Bundle.open(bundle)
    write_calibrated(plain, tmp_path / "few", MAKERS["double-sparsity"](plain))
    for words, policy in (
        ((), "double-sparsity"),
        (("--kv-policy", "full"), "full"),
        (("--kv-policy", "auto"), "full"),
    ):
        data = edgedec("bench", "-m", tmp_path / "few", "-t", "1", *words, "--json").json
        assert data["kv_policy"] == policy
    assert "float, policy double-sparsity, measured" in edgedec("bench", "-m", tmp_path / "few", "-t", "1").stdout
    refused = edgedec("bench", "-m", bundle, "--kv-policy", "nosa")
    assert refused.code == 2
    assert "has no policy of keys and values, and --kv-policy asks for nosa" in refused.stderr


@pytest.mark.thorough
@pytest.mark.usefixtures("quick")
def test_bench_writes_with_guesses(edgedec: Edgedec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "TEXTS", 1)
    options = (
        "bench",
        "-m",
        "demo",
        "-t",
        "1",
        "--spec-type",
        "model",
        "--verifier",
        "traversal",
        "--spec-tree",
        "static",
    )
    printed: dict[str, Any] = edgedec(*options, "--temp", "0.7", "--json").json
    data = printed["guesses"]
    assert (data["drafter"], data["spec_tree"], data["verifier"]) == ("model", "static", "traversal")
    assert (data["temperature"], data["lossless"]) == (0.7, "distribution")
    assert data["draft_n"] >= data["draft_n_accepted"] > 0
    assert data["tokens_per_round"] > 1
    assert data["predicted_per_second"] > 0
    assert "tokens per round" in edgedec(*options).stdout


# doctor


@pytest.mark.thorough
def test_doctor_passes_on_a_complete_installation(edgedec: Edgedec) -> None:
    outcome = edgedec("doctor", "--json")
    assert outcome.code == 0
    data: dict[str, Any] = outcome.json
    assert set(data) == {"ok", "checks", "budget"}
    assert data["ok"] is True
    assert all(set(check) == {"name", "status", "detail", "fix"} for check in data["checks"])
    names = [check["name"] for check in data["checks"]]
    for name in ("python", "numpy", "onnxruntime providers", "cpu", "memory", "memory meter", "cache folder", "torch"):
        assert name in names
    assert all(check["fix"] for check in data["checks"] if check["status"] != "ok"), "each lack has a remedy"
    text = edgedec("doctor").stdout
    assert text.startswith("ok      python: ")
    assert all(name in text for name in names)


def test_doctor_names_what_is_missing(edgedec: Edgedec, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = doctor_module._installed
    monkeypatch.setattr(
        doctor_module, "_installed", lambda module: None if module == "tokenizers" else installed(module)
    )
    outcome = edgedec("doctor", "--json")
    assert outcome.code == 3
    assert outcome.json["ok"] is False
    (check,) = (entry for entry in json.loads(outcome.stdout)["checks"] if entry["name"] == "tokenizers")
    assert check["status"] == "missing"
    assert "-m pip install 'tokenizers>=" in check["fix"]
    assert "edgedec: missing: tokenizers; run the commands above" in outcome.stderr
