"""Readers take the inputs that campaigns kept, and new ones; campaigns were long enough (docs/reports/fuzzing.md)."""

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

INPUTS, GUIDED_INPUTS = 100_000, 20_000  # of each reader, at least; guided by coverage in the last campaign
MAX_CORPUS_BYTES = 1_500_000
UNGUIDED_INPUTS = 2000
BY_NAME = {target.name: target for target in TARGETS}

each_reader = pytest.mark.parametrize("reader", list(BY_NAME))


@each_reader
def test_seeds_are_made_the_same_every_time_and_some_are_read(reader: str, tmp_path: Path) -> None:
    target = BY_NAME[reader]
    seeds = list(target.seeds())
    assert seeds == list(target.seeds())
    assert None in [check(target, seed, tmp_path) for seed in seeds]


@pytest.mark.thorough(sample=7)
@each_reader
def test_kept_inputs(reader: str, tmp_path: Path) -> None:
    target, kept = BY_NAME[reader], corpus.kept_inputs(reader)
    refusals = [check(target, data, tmp_path, traced=False) for data in kept.values()]
    assert len(set(refusals)) > 5, "they reach what is wrong in many ways"
    assert None in refusals, "and what is right"


@each_reader
def test_some_new_inputs(reader: str, tmp_path: Path) -> None:
    target = BY_NAME[reader]
    origins = [*target.seeds(), *corpus.kept_inputs(reader).values()]
    assert run_unguided(target, origins, 20, 0, tmp_path)["inputs"] == 20


@pytest.mark.slow
@each_reader
def test_many_new_inputs(reader: str, tmp_path: Path) -> None:
    target = BY_NAME[reader]
    origins = [*target.seeds(), *corpus.kept_inputs(reader).values()]
    counts = run_unguided(target, origins, UNGUIDED_INPUTS, 1, tmp_path)
    assert counts["read"] > UNGUIDED_INPUTS // 50
    assert counts["refused"] > UNGUIDED_INPUTS // 10


@pytest.mark.slow
def test_a_guided_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds: the second goes on where the first ended, with what it found."""
    pytest.importorskip("atheris", reason="pip install atheris")
    monkeypatch.setattr(campaign, "FOLDER", tmp_path)
    monkeypatch.setattr(campaign, "ROUND_INPUTS", 1000)
    assert campaign.main(["--readers", "vocab-listing", "--inputs", "500"]) == 0
    folder = tmp_path / "vocab-listing"
    first = len(list((folder / "corpus").iterdir()))
    assert campaign.main(["--readers", "vocab-listing", "--inputs", "1500"]) == 0
    rounds = json.loads((folder / "state.json").read_text())["rounds"]
    assert [one["inputs"] for one in rounds] == [1000, 1000]
    assert all(one["read"] > 10 and one["refused"] > 100 and one["edges"] > 30 for one in rounds)
    assert len(list((folder / "corpus").iterdir())) >= first > len(list(BY_NAME["vocab-listing"].seeds()))


# --- what is kept of campaigns


def test_corpus_is_small_and_of_readers_that_there_are() -> None:
    files = list(corpus.CORPUS.iterdir())
    assert {path.name for path in files} == {f"{name}.tar.xz" for name in BY_NAME}
    assert sum(path.stat().st_size for path in files) < MAX_CORPUS_BYTES


def test_the_same_inputs_are_packed_into_the_same_bytes() -> None:
    inputs = [b"one", b"", b"two" * 999]
    assert corpus.pack(inputs) == corpus.pack(inputs[::-1])
    assert sorted(corpus.unpacked(corpus.pack(inputs)).values()) == sorted(inputs)


def test_minimised_inputs_reach_as_much(tmp_path: Path) -> None:
    target = BY_NAME["vocab-listing"]
    good = next(iter(target.seeds()))
    inputs = {"good": good, "longer": good + good[-8:].replace(b"he", b"ah"), "bad": b"x", "other": b"y"}
    assert set(corpus.minimised(target, inputs, tmp_path)) >= {good, b"x"}
    assert b"y" not in corpus.minimised(target, inputs, tmp_path), "it reaches what x reaches"


@each_reader
def test_campaigns_were_long_enough(reader: str) -> None:
    campaigns = [one for one in results.read() if one["reader"] == reader]
    assert sum(one["inputs"] for one in campaigns) >= INPUTS
    last = campaigns[-1]
    assert last["guided"] >= GUIDED_INPUTS
    assert last["findings"] == 0, "a finding is mended, has a test of its own, and is fuzzed again"
    assert last["read"] + last["refused"] == last["inputs"]
    assert last["read"] > last["inputs"] // 100, "inputs that are refused at once find nothing"


def test_documented_results_are_those_that_are_kept() -> None:
    assert results.table(results.read()) in results.DOCS.read_text("utf-8")


def test_every_reader_has_a_target() -> None:
    """A new file among the readers belongs to a target, which then needs a campaign."""
    folder = Path(untrusted.__file__).parent
    there = {
        path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.py") if path.stem != "__init__"
    }
    assert there == frozenset().union(*(target.modules for target in TARGETS))


@each_reader
def test_seeds_run_the_modules_that_the_target_names(reader: str, tmp_path: Path) -> None:
    target, folder = BY_NAME[reader], Path(untrusted.__file__).parent
    seen = set()

    def called(frame: types.FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            name = frame.f_code.co_filename
            if Path(name).is_relative_to(folder):
                seen.add(Path(name).relative_to(folder).with_suffix("").as_posix())

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        for seed in target.seeds():
            check(target, seed, tmp_path, traced=False)
    finally:
        sys.setprofile(before)
    assert target.modules <= seen


# --- what the property notices


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
    """As the tokenizers library raises them."""


@pytest.mark.parametrize(
    ("action", "what"),
    [
        (_raise(KeyError("a")), "KeyError escapes: 'a'"),
        (_raise(MemoryError()), "MemoryError escapes"),
        (_raise(RecursionError()), "RecursionError escapes"),
        (_raise(_Panic("index out of bounds")), "_Panic escapes"),
        (_refuse("model.gguf: is damaged"), "the message does not name the file"),
        (_refuse("FOLDER/model.gguf: " + "a" * 2000), "the message is too long"),
        (_refuse("FOLDER/model.gguf: \x1b[2J"), "the message holds what a terminal may obey"),
        (_refuse("FOLDER/model.gguf: two\nlines"), "the message holds what a terminal may obey"),
        (_refuse("FOLDER/a: needs 9 bytes of memory, more than there is"), "memory was asked for before"),
        (lambda folder: (folder / "x").write_bytes(b""), "the reader changed something: open .*x' for writing"),
        (lambda folder: (folder / "model.gguf").rename(folder / "y"), "the reader changed something: os.rename"),
        (lambda folder: bytearray(80 << 20) and None, "too much memory: 80 MB allocated"),
        (lambda folder: np.empty(80 << 20, np.uint8) is None, "too much memory: 80 MB allocated"),
        (lambda folder: warnings.warn("x", stacklevel=1), "UserWarning escapes"),
        (_divide, "RuntimeWarning escapes: divide by zero"),
    ],
)
def test_the_property_notices(tmp_path: Path, action: Callable[[Path], None], what: str) -> None:
    with pytest.raises(Finding, match=what):
        check(_reads(action), b"GGUF", tmp_path, traced=True)


def _work_for_ever(folder: Path) -> None:
    while True:
        folder.exists()


@pytest.mark.parametrize("action", [_work_for_ever, lambda folder: time.sleep(600), _swallow_the_clock])
def test_the_property_notices_what_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Callable[[Path], None]
) -> None:
    for limit in ("MAX_SECONDS", "MAX_WAITED_SECONDS"):
        monkeypatch.setattr(property, limit, 0.1 if action is not _work_for_ever or limit == "MAX_SECONDS" else 600)
    start = time.perf_counter()
    with pytest.raises(Finding, match=r"too slow: 0\.\d s of the processor"):
        check(_reads(action), b"", tmp_path)
    assert time.perf_counter() - start < 300, "it waited until the sleep was over"


def test_the_property_takes_refusals_and_reading(tmp_path: Path) -> None:
    assert check(_reads(lambda folder: None), b"", tmp_path) is None
    assert check(_reads(_refuse("FOLDER/model.gguf: no")), b"", tmp_path) == f"{tmp_path}/model.gguf: no"


def test_a_planted_bug_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that looks a key up without asking whether it is there."""
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


# --- what inputs are made of


@pytest.mark.parametrize("contents", [[b"a"], [b"a", b"", b"bcd"], [b"", b""]])
def test_framing(contents: list[bytes]) -> None:
    assert unframed(framed(contents), len(contents)) == contents


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xff" * 9, b"\x01\0\0\0"])
def test_any_bytes_are_files(data: bytes) -> None:
    assert len(unframed(data, 3)) == 3


@each_reader
def test_mutations_repeat_themselves_and_stay_short(reader: str) -> None:
    target = BY_NAME[reader]
    for seed in target.seeds():
        first, second = ([target.mutate(random.Random(at), seed) for at in range(30)] for _ in range(2))
        assert first == second
        assert sum(one != seed for one in first) > 15
        assert max(map(len, first)) <= 1 << 15
    noise = random.Random(0).randbytes(200)
    assert all(isinstance(target.mutate(random.Random(at), noise), bytes) for at in range(30))
