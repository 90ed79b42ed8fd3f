"""Check the readers on the inputs that campaigns kept, and on new ones, and the length of campaigns
(docs/reports/fuzzing.md).
"""

from __future__ import annotations

import json
import random
import sys
import time
import types
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.errors import BundleError
from edgedec.quantize.readers import untrusted
from edgedec.quantize.readers.gguf import checkpoint, tokenizer
from tests.attacks.fuzz import campaign, corpus, property, results
from tests.attacks.fuzz.framing import framed, unframed
from tests.attacks.fuzz.property import Finding, check
from tests.attacks.fuzz.targets import TARGETS, Target
from tests.attacks.fuzz.unguided import run_unguided

# minimum inputs of each reader; minimum of those guided by coverage in the last campaign
INPUTS, GUIDED_INPUTS = 100_000, 20_000
MAX_CORPUS_BYTES = 1_500_000
UNGUIDED_INPUTS = 2000
BY_NAME = {target.name: target for target in TARGETS}

each_reader = pytest.mark.parametrize("reader", list(BY_NAME))


@pytest.mark.thorough(sample=1)
@each_reader
def test_seeds_are_the_same_every_time_and_some_are_read(reader: str, tmp_path: Path) -> None:
    target = BY_NAME[reader]
    seeds = list(target.seeds())
    assert seeds == list(target.seeds())
    assert None in [check(target, seed, tmp_path) for seed in seeds]


@pytest.mark.thorough
@each_reader
def test_kept_inputs_are_read_or_refused(reader: str, tmp_path: Path) -> None:
    target, inputs = BY_NAME[reader], corpus.kept_inputs(reader)
    refusals = [check(target, data, tmp_path, traced=False) for data in inputs.values()]
    assert len(set(refusals)) > 5, "they reach what is wrong in many ways"
    assert None in refusals, "and what is right"


@pytest.mark.thorough(sample=1)
@each_reader
def test_some_new_inputs_are_read_or_refused(reader: str, tmp_path: Path) -> None:
    target = BY_NAME[reader]
    origins = [*target.seeds(), *corpus.kept_inputs(reader).values()]
    assert run_unguided(target, origins, 20, 0, tmp_path)["inputs"] == 20


@pytest.mark.nightly
@each_reader
def test_many_new_inputs_are_read_or_refused(reader: str, tmp_path: Path) -> None:
    target = BY_NAME[reader]
    origins = [*target.seeds(), *corpus.kept_inputs(reader).values()]
    counts = run_unguided(target, origins, UNGUIDED_INPUTS, 1, tmp_path)
    assert counts["read"] > UNGUIDED_INPUTS // 50
    assert counts["refused"] > UNGUIDED_INPUTS // 10


@pytest.mark.nightly
def test_a_guided_campaign_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run two rounds: the second continues with what the first found."""
    pytest.importorskip("atheris", reason="pip install atheris")
    monkeypatch.setattr(campaign, "FOLDER", tmp_path)
    monkeypatch.setattr(campaign, "ROUND_INPUTS", 1000)
    assert campaign.main(["--readers", "vocab-listing", "--inputs", "500"]) == 0
    folder = tmp_path / "vocab-listing"
    first = len(list((folder / "corpus").iterdir()))
    assert campaign.main(["--readers", "vocab-listing", "--inputs", "1500"]) == 0
    rounds = json.loads((folder / "state.json").read_text())["rounds"]
    assert [entry["inputs"] for entry in rounds] == [1000, 1000]
    assert all(entry["read"] > 10 and entry["refused"] > 100 and entry["edges"] > 30 for entry in rounds)
    assert len(list((folder / "corpus").iterdir())) >= first > len(list(BY_NAME["vocab-listing"].seeds()))


# --- kept results of campaigns


def test_the_corpus_is_small_and_belongs_to_existing_readers() -> None:
    files = list(corpus.CORPUS.iterdir())
    assert {path.name for path in files} == {f"{name}.tar.xz" for name in BY_NAME}
    assert sum(path.stat().st_size for path in files) < MAX_CORPUS_BYTES


def test_the_same_inputs_are_packed_into_the_same_bytes() -> None:
    inputs = [b"one", b"", b"two" * 999]
    assert corpus.pack(inputs) == corpus.pack(inputs[::-1])
    assert sorted(corpus.unpacked(corpus.pack(inputs)).values()) == sorted(inputs)


def test_minimised_inputs_reach_as_much(tmp_path: Path) -> None:
    target = BY_NAME["vocab-listing"]
    seed = next(iter(target.seeds()))
    inputs = {"good": seed, "longer": seed + seed[-8:].replace(b"he", b"ah"), "bad": b"x", "other": b"y"}
    assert set(corpus.minimised(target, inputs, tmp_path)) >= {seed, b"x"}
    assert b"y" not in corpus.minimised(target, inputs, tmp_path), "it reaches what x reaches"


def test_the_tracer_of_coverage_or_a_debugger_goes_on(tmp_path: Path) -> None:
    def tracer(_frame: types.FrameType, _event: str, _argument: object) -> None:
        """Trace nothing."""

    previous = sys.gettrace()
    sys.settrace(tracer)
    try:
        corpus.minimised(BY_NAME["vocab-listing"], {"bad": b"x"}, tmp_path)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(previous)


@each_reader
def test_campaigns_had_enough_inputs(reader: str) -> None:
    campaigns = [entry for entry in results.read() if entry["reader"] == reader]
    assert sum(entry["inputs"] for entry in campaigns) >= INPUTS
    last = campaigns[-1]
    assert last["guided"] >= GUIDED_INPUTS
    assert last["findings"] == 0, "a finding is mended, has a test of its own, and is fuzzed again"
    assert last["read"] + last["refused"] == last["inputs"]
    assert last["read"] > last["inputs"] // 100, "inputs that are refused at once find nothing"


def test_documented_results_equal_the_stored_ones() -> None:
    assert results.table(results.read()) in results.DOCS.read_text("utf-8")


def test_every_reader_has_a_target() -> None:
    """Check this because a new reader needs a campaign."""
    folder = Path(untrusted.__file__).parent
    modules = {
        path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.py") if path.stem != "__init__"
    }
    assert modules == frozenset().union(*(target.modules for target in TARGETS))


@pytest.mark.thorough
@each_reader
def test_seeds_run_the_modules_of_their_target(reader: str, tmp_path: Path) -> None:
    target, folder = BY_NAME[reader], Path(untrusted.__file__).parent
    called_modules = set()

    def called(frame: types.FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            name = frame.f_code.co_filename
            if Path(name).is_relative_to(folder):
                called_modules.add(Path(name).relative_to(folder).with_suffix("").as_posix())

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        for seed in target.seeds():
            check(target, seed, tmp_path, traced=False)
    finally:
        sys.setprofile(before)
    assert target.modules <= called_modules


# --- the property


def _reads(action: Callable[[Path], None]) -> Target:
    return replace(BY_NAME["gguf"], read=action)


def _refuse(message: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        raise BundleError(message.replace("FOLDER", str(folder)))

    return read


def _raise(error: BaseException) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        raise error

    return read


def _swallow_the_clock(folder: Path) -> None:
    try:
        time.sleep(600)
    except BaseException:
        raise BundleError(f"{folder}: unusable") from None


def _divide(folder: Path) -> None:
    np.float32(1) / np.zeros(1, np.float32)


class _Panic(BaseException):
    """Model a panic of the tokenizers library."""


@pytest.mark.parametrize(
    ("action", "signature"),
    [
        (_raise(KeyError("a")), "KeyError escapes: 'a'"),
        (_raise(MemoryError()), "MemoryError escapes"),
        (_raise(RecursionError()), "RecursionError escapes"),
        (_raise(_Panic("index out of bounds")), "_Panic escapes"),
        (_refuse("model.gguf: is damaged"), "the message does not name the file"),
        (_refuse("FOLDER/model.gguf: " + "a" * 2000), "the message is too long"),
        (_refuse("FOLDER/model.gguf: \x1b[2J"), "the message holds what a terminal may obey"),
        (_refuse("FOLDER/model.gguf: two\nlines"), "the message holds what a terminal may obey"),
        (_refuse("FOLDER/a: needs 9 bytes of memory, more than is available"), "memory was asked for before"),
        (lambda folder: (folder / "x").write_bytes(b""), "the reader changed something: open .*x' for writing"),
        (lambda folder: (folder / "model.gguf").rename(folder / "y"), "the reader changed something: os.rename"),
        (lambda folder: bytearray(80 << 20) and None, "too much memory: 80 MB allocated"),
        (lambda folder: np.empty(80 << 20, np.uint8) is None, "too much memory: 80 MB allocated"),
        (lambda folder: warnings.warn("x", stacklevel=1), "UserWarning escapes"),
        (_divide, "RuntimeWarning escapes: divide by zero"),
    ],
)
def test_the_property_detects_violations(tmp_path: Path, action: Callable[[Path], None], signature: str) -> None:
    with pytest.raises(Finding, match=signature):
        check(_reads(action), b"GGUF", tmp_path, traced=True)


def _work_for_ever(folder: Path) -> None:
    while True:
        folder.exists()


@pytest.mark.parametrize("action", [_work_for_ever, lambda folder: time.sleep(600), _swallow_the_clock])
def test_the_property_detects_endless_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Callable[[Path], None]
) -> None:
    for limit in ("MAX_SECONDS", "MAX_WAITED_SECONDS"):
        monkeypatch.setattr(property, limit, 0.1 if action is not _work_for_ever or limit == "MAX_SECONDS" else 600)
    start = time.perf_counter()
    with pytest.raises(Finding, match=r"too slow: 0\.\d s of the processor"):
        check(_reads(action), b"", tmp_path)
    assert time.perf_counter() - start < 300, "it waited until the sleep was over"


def test_the_property_accepts_refusals_and_reading(tmp_path: Path) -> None:
    assert check(_reads(lambda folder: None), b"", tmp_path) is None
    assert check(_reads(_refuse("FOLDER/model.gguf: no")), b"", tmp_path) == f"{tmp_path}/model.gguf: no"


@pytest.mark.thorough
def test_a_planted_bug_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a reader that looks a key up without a check for its presence."""
    real = tokenizer.special_ids

    def planted(header: Any, vocab_size: int) -> Any:
        header.metadata["tokenizer.ggml.eos_token_id"]
        return real(header, vocab_size)

    target = BY_NAME["gguf"]
    origins = list(target.seeds())
    run_unguided(target, origins, 200, 0, tmp_path)
    monkeypatch.setattr(checkpoint, "special_ids", planted)
    with pytest.raises(Finding, match=r"KeyError escapes: 'tokenizer.ggml.eos_token_id'") as caught:
        run_unguided(target, origins, 2000, 0, tmp_path)
    assert "eos_token_id" not in (tmp_path / "model.gguf").read_bytes().decode("latin-1"), "the input lies there"
    assert caught.value.signature.startswith("KeyError escapes")


# --- inputs


@pytest.mark.parametrize("contents", [[b"a"], [b"a", b"", b"bcd"], [b"", b""]])
def test_framing_can_be_undone(contents: list[bytes]) -> None:
    assert unframed(framed(contents), len(contents)) == contents


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xff" * 9, b"\x01\0\0\0"])
def test_any_bytes_can_be_split_into_files(data: bytes) -> None:
    assert len(unframed(data, 3)) == 3


@pytest.mark.thorough(sample=1)
@each_reader
def test_mutations_are_repeatable_and_short(reader: str) -> None:
    target = BY_NAME[reader]
    for seed in target.seeds():
        first, second = ([target.mutate(random.Random(at), seed) for at in range(30)] for _ in range(2))
        assert first == second
        assert sum(mutated != seed for mutated in first) > 15
        assert max(map(len, first)) <= 1 << 15
    noise = random.Random(0).randbytes(200)
    assert all(isinstance(target.mutate(random.Random(at), noise), bytes) for at in range(30))
