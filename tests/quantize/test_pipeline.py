"""Test checkpoint to bundle: what is written, what is refused, and what a killed run or a full disk leaves."""

from __future__ import annotations

import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.errors import BundleError, EdgedecError, UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.quantize.calibration import cut_windows, float_perplexity, full_windows, sample_ids, sample_scored
from edgedec.quantize.pipeline import QuantizeOptions, checkpoint_graph, least_bytes, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.targets import open_target
from edgedec.schemes import FloatWeight, Int8Scheme, Int8Weight, TernaryScheme, TernaryWeight
from tests.quantize.readers.support.make_checkpoints import write_hf

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 16,
    "max_position_embeddings": 64,
}


def tensors(seed: int = 0, *, tied: bool = True, ternary: bool = False, **sizes: int) -> dict[str, NDArray[Any]]:
    """Return tensors of a checkpoint that fits ``SIZES``; ``ternary`` makes the layers' matrices -s, 0 and s in
    bfloat16.
    """
    rng = np.random.default_rng(seed)
    graph = build_graph({"model_type": "llama", "tie_word_embeddings": tied, **SIZES, **sizes})
    arrays: dict[str, NDArray[Any]] = {}
    for name, spec in graph.weights.items():
        values = rng.standard_normal(spec.shape) / np.sqrt(spec.shape[-1])
        if ternary and len(spec.shape) == 2 and "layers" in name:
            values = np.sign(values) * (rng.random(spec.shape) < 0.6) * rng.uniform(0.01, 0.2)
        arrays[name] = values.astype(ml_dtypes.bfloat16 if ternary else np.float32)
    return arrays


def write(folder: Path, contents: dict[str, NDArray[Any]], **config: Any) -> Path:
    return write_hf(folder, contents, **{"tie_word_embeddings": True, **SIZES, **config})


def run(
    source: Path, output: Path, method: str, planes: int = 0, calibration: NDArray[np.int32] | None = None
) -> Bundle:
    options = QuantizeOptions(method=method, planes=planes)
    quantize(open_checkpoint(source), output, options, vocab_limit=13, calibration=calibration)
    return Bundle.open(output)


def test_float_keeps_every_value(tmp_path: Path) -> None:
    contents = tensors()
    bundle = run(write(tmp_path / "m", contents), tmp_path / "b", "float")
    for name, values in contents.items():
        weight = bundle.weight(name)
        assert isinstance(weight, FloatWeight)
        np.testing.assert_array_equal(weight.values, values)
    assert set(bundle.tensors) == set(contents)
    assert bundle.config["tie_word_embeddings"] is True


def test_int8_is_within_half_a_step_of_each_row(tmp_path: Path) -> None:
    contents = tensors(tied=False)
    bundle = run(write(tmp_path / "m", contents, tie_word_embeddings=False), tmp_path / "b", "int8")
    for name, values in contents.items():
        weight = bundle.weight(name)
        if values.ndim == 1:
            np.testing.assert_array_equal(weight.dense(), values)
            continue
        assert isinstance(weight, Int8Weight)
        assert bundle.tensors[name].scheme == Int8Scheme(rows=True)
        assert np.all(np.abs(weight.dense() - values) <= 0.5001 * weight.scale[:, None])


def logits(bundle: Bundle) -> NDArray[np.float32]:
    """Return the reference's logits after each id of a fixed text: float32 [8, vocab]."""
    limits, rows = Limits(nodes=8, depth=0, positions=8), np.arange(8, dtype=np.int32)
    target = open_target(bundle, device="float_reference", limits=limits)
    (result,) = target.submit([(target.open(limits), Pass(ids=rows, positions=rows, logits=rows))]).result()
    return result.logits


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(("method", "planes"), [("float", 0), ("int8", 0), ("int4", 0), ("ternary", 2)])
def test_a_tied_head_equal_to_the_embedding_is_stored_once(tmp_path: Path, method: str, planes: int) -> None:
    contents = tensors(tied=True)
    source = write(tmp_path / "m", contents)
    apart = write(
        tmp_path / "apart",
        contents | {"lm_head.weight": contents["model.embed_tokens.weight"]},
        tie_word_embeddings=False,
    )
    steps: list[tuple[int, int]] = []
    options = QuantizeOptions(method=method, planes=planes)
    report = quantize(
        open_checkpoint(source),
        tmp_path / "b",
        options,
        vocab_limit=13,
        progress=lambda _, done, total: steps.append((done, total)),
    )
    once, twice = Bundle.open(tmp_path / "b"), run(apart, tmp_path / "b2", method, planes)
    assert set(twice.tensors) - set(once.tensors) == {"lm_head.weight"}
    assert report.stored_bytes == sum(tensor.nbytes for tensor in once.tensors.values())
    assert steps[-1][0] == steps[-1][1]
    assert (steps[-1][1] == report.parameters) == (method in ("float", "int8")), "fitted matrices take longer"
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    np.testing.assert_array_equal(logits(once), logits(twice))


def test_a_native_ternary_model_keeps_its_embedding_and_has_an_int8_head(tmp_path: Path) -> None:
    bundle = run(write(tmp_path / "m", tensors(ternary=True)), tmp_path / "b", "ternary")
    assert bundle.tensors["lm_head.weight"].scheme == Int8Scheme(rows=True)
    assert bundle.config["tie_word_embeddings"] is False


@pytest.mark.parametrize("options", [{"method": "int8"}, {"method": "ternary", "planes": 2}])
def test_a_ternary_checkpoint_that_is_quantized_otherwise_is_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    ternary, floats = write(tmp_path / "t", tensors(ternary=True)), write(tmp_path / "f", tensors())
    report = quantize(open_checkpoint(ternary), tmp_path / "b", QuantizeOptions(**options), vocab_limit=13)
    (note,) = report.notes
    assert note in caplog.messages
    assert "this checkpoint is ternary; --method ternary without --planes takes" in note
    assert ("about a quarter" in note) == (options["method"] == "int8")
    for source, other in ((floats, options), (ternary, {"method": "ternary"}), (ternary, {"method": "float"})):
        assert not quantize(open_checkpoint(source), tmp_path / "b", QuantizeOptions(**other), vocab_limit=13).notes


def test_one_matrix_that_is_not_ternary_is_enough_for_no_note(tmp_path: Path) -> None:
    contents = tensors(ternary=True)
    contents["model.layers.1.mlp.down_proj.weight"][0, 0] *= 2
    source = write(tmp_path / "m", contents)
    assert not quantize(open_checkpoint(source), tmp_path / "b", QuantizeOptions(method="int8"), vocab_limit=13).notes


@pytest.mark.parametrize("method", ["int8", "float", "ternary"])
def test_a_bundle_has_at_least_the_bytes_that_are_looked_for_on_the_disk(tmp_path: Path, method: str) -> None:
    source, options = write(tmp_path / "m", tensors(ternary=True)), QuantizeOptions(method=method)
    report = quantize(open_checkpoint(source), tmp_path / "b", options, vocab_limit=13)
    assert 0.2 * report.stored_bytes < least_bytes(open_checkpoint(source), options) <= report.stored_bytes


def test_the_error_of_fitted_matrices_is_that_of_the_bundle(tmp_path: Path) -> None:
    contents = tensors()
    source = open_checkpoint(write(tmp_path / "m", contents))
    for ids in (None, np.ones((2, 32), np.int32)):
        options = QuantizeOptions(method="ternary", planes=2, group_size=32)
        report = quantize(source, tmp_path / "b", options, vocab_limit=13, calibration=ids)
        bundle = Bundle.open(tmp_path / "b")
        names = [name for name, tensor in bundle.tensors.items() if isinstance(tensor.scheme, TernaryScheme)]
        error = sum(float(((contents[name] - bundle.weight(name).dense()) ** 2).sum()) for name in names)
        weights = sum(float((contents[name] ** 2).sum()) for name in names)
        assert report.relative_error == pytest.approx((error / weights) ** 0.5, rel=1e-4)
    assert quantize(source, tmp_path / "b", QuantizeOptions(method="int8"), vocab_limit=13).relative_error is None


def test_what_is_written_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = BundleWriter.finish

    def damage(writer: BundleWriter, **content: Any) -> None:
        finish(writer, **content)
        data = bytearray(writer.folder.joinpath("weights.bin").read_bytes())
        data[-1] ^= 1
        writer.folder.joinpath("weights.bin").write_bytes(data)

    monkeypatch.setattr(BundleWriter, "finish", damage)
    source = open_checkpoint(write(tmp_path / "m", tensors()))
    with pytest.raises(BundleError, match=r"weights\.bin"):
        quantize(source, tmp_path / "b", QuantizeOptions(method="int8"), vocab_limit=13)


def test_native_ternary_is_lossless(tmp_path: Path) -> None:
    contents = tensors(ternary=True)
    bundle = run(write(tmp_path / "m", contents), tmp_path / "b", "ternary")
    layers = [name for name, values in contents.items() if values.ndim == 2 and "layers" in name]
    assert len(layers) == 14
    for name in layers:
        weight = bundle.weight(name)
        assert isinstance(weight, TernaryWeight)
        np.testing.assert_array_equal(weight.dense(), contents[name].astype(np.float32))
    np.testing.assert_array_equal(
        bundle.array("model.embed_tokens.weight", "values"), contents["model.embed_tokens.weight"]
    )


def test_a_float_checkpoint_is_refused_as_native_ternary(tmp_path: Path) -> None:
    contents = tensors(ternary=True)
    contents["model.layers.1.mlp.up_proj.weight"][3, 4] = 0.5
    with pytest.raises(UnsupportedError, match=r"layers\.1\.mlp\.up_proj\.weight: .*is not ternary.*--planes"):
        run(write(tmp_path / "m", contents), tmp_path / "b", "ternary")
    assert not (tmp_path / "b").exists()


@pytest.mark.thorough
def test_planes_approximate_the_weights_and_calibration_the_outputs(tmp_path: Path) -> None:
    source = write(tmp_path / "m", tensors(1))
    checkpoint = open_checkpoint(source)
    ids = sample_ids(checkpoint, tokens=1024, vocab_limit=13, seed=0, length=32)
    errors = []
    for planes in (1, 2, 3):
        bundle = run(source, tmp_path / f"b{planes}", "ternary", planes)
        name = "model.layers.0.mlp.down_proj.weight"
        errors.append(np.abs(bundle.weight(name).dense() - checkpoint.load(name)).mean())
    assert errors[2] < 0.6 * errors[1] < 0.4 * errors[0]
    run(source, tmp_path / "c", "ternary", 1, ids)
    # Calibration changes the trits; test_quality.py shows on trained models that it helps.
    assert (tmp_path / "c/weights.bin").read_bytes() != (tmp_path / "b1/weights.bin").read_bytes()


@pytest.mark.parametrize(
    ("planes", "tied", "expected"),
    [(1, None, False), (2, None, False), (2, True, True), (3, None, True), (3, True, True), (3, False, False)],
)
def test_three_planes_are_tied_unless_the_user_decides(planes: int, tied: bool | None, expected: bool) -> None:
    options = QuantizeOptions(method="ternary", planes=planes, tied=tied)
    assert options.fitted_scheme == TernaryScheme(planes=planes, group_size=64, tied=expected)
    assert options.ties is expected


@pytest.mark.thorough
def test_int4_and_tied_planes_are_fitted_to_calibration(tmp_path: Path) -> None:
    source = write(tmp_path / "m", tensors(1))
    checkpoint = open_checkpoint(source)
    ids = sample_ids(checkpoint, tokens=1024, vocab_limit=13, seed=0, length=32)
    name = "model.layers.0.mlp.down_proj.weight"
    for options in (
        QuantizeOptions(method="int4"),
        QuantizeOptions(method="ternary", planes=2, tied=True),
        QuantizeOptions(method="ternary", planes=3, tied=True, group_size=32),
    ):
        for calibration in (None, ids):
            path = tmp_path / f"{options.method} {options.planes} {calibration is None}"
            quantize(checkpoint, path, options, vocab_limit=13, calibration=calibration)
            bundle = Bundle.open(path)
            assert bundle.tensors[name].scheme == options.fitted_scheme
            assert '"requires": [' in (path / "manifest.json").read_text()
            original = checkpoint.load(name)
            assert np.abs(bundle.weight(name).dense() - original).mean() < 0.3 * np.abs(original).mean()
        weights = [
            (tmp_path / f"{options.method} {options.planes} {plain}/weights.bin").read_bytes()
            for plain in (True, False)
        ]
        assert weights[0] != weights[1]


@pytest.mark.thorough
def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    source = write(tmp_path / "m", tensors(2))
    ids = sample_ids(open_checkpoint(source), tokens=256, vocab_limit=13, seed=0, length=32)
    bundles = [run(source, tmp_path / name, "ternary", 2, ids) for name in ("a", "b")]
    assert bundles[0].sha256 == bundles[1].sha256


@pytest.mark.parametrize(
    ("break_it", "error", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), BundleError, "tensor model.norm.weight is missing"),
        (lambda t: t.update({"model.norm.weight": np.ones(9, np.float32)}), BundleError, r"is \(9,\), .* says \(24,\)"),
        (
            lambda t: t.update({"model.layers.0.self_attn.q_norm.weight": np.ones(8, np.float32)}),
            UnsupportedError,
            r"q_norm\.weight has no place in the family 'llama'",
        ),
        (
            lambda t: t["model.norm.weight"].fill(np.nan),
            BundleError,
            r"tensor model\.norm\.weight holds NaN or infinity",
        ),
        (lambda t: t["model.embed_tokens.weight"].fill(np.inf), BundleError, "model.embed_tokens.weight holds NaN"),
        (lambda t: t["model.layers.1.mlp.up_proj.weight"].fill(-np.inf), BundleError, "up_proj.weight holds NaN"),
    ],
)
@pytest.mark.parametrize("planes", [0, 2])
def test_checkpoints_that_do_not_fit_are_refused(
    tmp_path: Path, break_it: Any, error: type[EdgedecError], message: str, planes: int
) -> None:
    contents = tensors()
    break_it(contents)
    source = write(tmp_path / "m", contents)
    with pytest.raises(error, match=message):
        run(source, tmp_path / "b", "ternary" if planes else "int8", planes)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_rotary_buffers_are_ignored(tmp_path: Path) -> None:
    contents = tensors() | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    run(write(tmp_path / "m", contents), tmp_path / "b", "int8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "int5"}, "method must be one of int8, int4, ternary, float, not 'int5'"),
        ({"method": "int8", "planes": 2}, "--planes 2 is for --method ternary, not int8"),
        ({"method": "ternary", "planes": 4}, "--planes must be 1, 2 or 3"),
        ({"method": "ternary", "planes": 1, "tied": True}, "--tied ties the scales of 2 or 3 planes"),
        ({"method": "int4", "tied": True}, "--tied ties the scales of 2 or 3 planes"),
        ({"method": "int4", "planes": 2}, "--planes 2 is for --method ternary, not int4"),
        ({"method": "ternary", "planes": 1, "group_size": 48}, "--group-size must be 32, 64 or 128, not 48"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        QuantizeOptions(**options)


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "m", tensors()))
    with pytest.raises(BundleError, match="the tokenizer has 17 ids, the model only 16"):
        quantize(checkpoint, tmp_path / "b", QuantizeOptions(method="int8"), vocab_limit=17)


@pytest.mark.thorough
def test_peak_memory_stays_near_the_largest_tensor(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 12}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64}
    contents = tensors(tied=True, **sizes)
    whole, largest = sum(t.nbytes for t in contents.values()), max(t.nbytes for t in contents.values())
    source = write(tmp_path / "m", contents, **sizes)
    del contents
    tracemalloc.start()
    run(source, tmp_path / "b", "int8")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * largest < whole / 6


# script that waits between two tensors, so that a kill can land anywhere; it waits before the last one, so that a kill
# that a busy machine delays does not come after the end
_CHILD = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's children ignore it
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
def slow(what, done, total):
    print(what, flush=True)
    time.sleep(0.02 if total - done > 1 else 600)
quantize(open_checkpoint(Path(sys.argv[1])), Path(sys.argv[2]), QuantizeOptions(method=sys.argv[3]), vocab_limit=13,
         progress=slow)
"""


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("tensors_before", [0, 3, 12])
@pytest.mark.parametrize("existing", [False, True])
def test_a_kill_leaves_no_bundle_and_keeps_an_existing_one(tmp_path: Path, existing: bool, tensors_before: int) -> None:
    source, output = write(tmp_path / "m", tensors()), tmp_path / "b"
    before = run(source, output, "float").sha256 if existing else None
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(source), str(output), "int8"], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for _ in range(tensors_before + 1):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    if existing:
        assert Bundle.open(output).sha256 == before
    else:
        assert not output.exists()
    run(source, output, "int8")  # and the next run removes the leftovers
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "m"]


@pytest.mark.thorough
def test_ctrl_c_leaves_no_bundle(tmp_path: Path) -> None:
    source, output = write(tmp_path / "m", tensors()), tmp_path / "b"
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(source), str(output), "int8"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    child.wait(timeout=120)
    child.stdout.close()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


_STARVED = """
import resource, signal, sys
from pathlib import Path
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.errors import EdgedecError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    quantize(open_checkpoint(Path(sys.argv[1])), Path(sys.argv[2]), QuantizeOptions(method="int8"), vocab_limit=13)
except EdgedecError as error:
    sys.exit(f"refused: {error}")
"""


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("limit_bytes", [0, 100, 4096])
def test_a_full_file_system_leaves_the_old_bundle(tmp_path: Path, limit_bytes: int) -> None:
    """Set a file-size limit, which fails in write() like a full disk; tests/edgedec/test_atomic.py fills a disk."""
    source, output = write(tmp_path / "m", tensors()), tmp_path / "b"
    before = run(source, output, "float").sha256
    process = subprocess.run(
        [sys.executable, "-c", _STARVED, str(source), str(output), str(limit_bytes)], capture_output=True, text=True
    )
    assert process.returncode == 1
    assert f"refused: cannot write {output}" in process.stderr
    assert Bundle.open(output).sha256 == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "m"]


@pytest.mark.thorough
def test_sampled_ids_follow_the_model(tmp_path: Path) -> None:
    """Check this because the float model's perplexity on its own text is exp of its entropy, below that of uniform
    text.
    """
    contents = tensors(3)
    contents["model.norm.weight"] *= 4  # a confident model
    checkpoint = open_checkpoint(write(tmp_path / "m", contents))
    own = sample_ids(checkpoint, tokens=2048, vocab_limit=13, seed=1, length=64)
    assert own.shape == (32, 64)
    assert np.all(own[:, 0] == 1)
    assert own.max() < 13
    steps: list[tuple[int, int]] = []
    again, perplexity = sample_scored(
        checkpoint,
        tokens=2048,
        vocab_limit=13,
        seed=1,
        length=64,
        progress=lambda _, done, total: steps.append((done, total)),
    )
    np.testing.assert_array_equal(own, again)
    assert perplexity == pytest.approx(float_perplexity(checkpoint, list(own), vocab_limit=13), rel=1e-5)
    assert steps[-1] == (2048, 2048)
    assert len(steps) == 63
    np.testing.assert_array_equal(own, sample_ids(checkpoint, tokens=2048, vocab_limit=13, seed=1, length=64))
    uniform = np.random.default_rng(0).integers(0, 13, own.shape).astype(np.int32)
    assert float_perplexity(checkpoint, list(own), vocab_limit=13) < 0.7 * float_perplexity(
        checkpoint, list(uniform), vocab_limit=13
    )


@pytest.mark.parametrize("bos", [None, 1])
@pytest.mark.parametrize("count", [1, 2, 8, 9, 15, 16, 17])
def test_windows_score_each_id_once(count: int, bos: int | None) -> None:
    ids = np.arange(10, 10 + count, dtype=np.int32)
    windows = cut_windows(ids, length=8, bos=bos)
    scored = [int(i) for window in windows for i in window[1:]]
    assert scored == ids.tolist() if bos is not None else scored == ids.tolist()[1:]
    assert all(len(window) <= 8 for window in windows)
    if bos is not None:
        assert all(window[0] == bos for window in windows)
        assert cut_windows(np.concatenate([[bos], ids]).astype(np.int32), length=8, bos=bos)[0][1] == 10
    if windows:
        assert full_windows(windows).shape[1] == len(windows[0])


def test_the_graph_names_the_source_of_each_tensor(tmp_path: Path) -> None:
    graph, sources = checkpoint_graph(open_checkpoint(write(tmp_path / "m", tensors())))
    assert sources["lm_head.weight"] == "model.embed_tokens.weight"
    assert set(sources) == set(graph.weights)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_numbers_outside_of_json_are_refused(tmp_path: Path, number: str) -> None:
    source = write(tmp_path / "m", tensors())
    text = (source / "config.json").read_text()
    (source / "config.json").write_text(text.replace("{", '{"initializer_range": ' + number + ", ", 1))
    with pytest.raises(BundleError, match=r"config\.json: not valid JSON"):
        run(source, tmp_path / "b", "int8")
