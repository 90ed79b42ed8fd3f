"""Test the measured acceptance of drafts against what two models' distributions say, computed anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgedec.errors import UsageError
from edgedec.runtime.measure.acceptance import (
    MOST_TOKENS,
    OPENINGS,
    PAST,
    WrittenText,
    measure_acceptance,
    read_texts,
    write_texts,
)
from edgedec.runtime.protocols import F32, I32, Limits, Pass
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets import open_target
from tests.runtime.support.bench_decoders import VOCAB, Pair, make_pair

SAMPLING = SamplingConfig(temperature=0.7, top_k=9, top_p=0.9, min_p=0.02)
RNG = np.random.default_rng(0)
TEXTS = [
    WrittenText(ids=RNG.integers(0, VOCAB, size).astype(np.int32), prompt=prompt) for size, prompt in ((50, 3), (9, 8))
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


def test_acceptance_equals_the_definition(pair: Pair) -> None:
    table = measure_acceptance(pair.large, [pair.small, pair.large], TEXTS, SAMPLING, threads=1)
    limits = Limits(nodes=64, depth=0, positions=64)
    targets = [open_target(bundle, limits=limits, threads=1) for bundle in (pair.large, pair.small)]
    sampler, chosen, drawn, written = Sampler(SAMPLING, VOCAB), list[float](), list[float](), list[F32]()
    for text in TEXTS:
        for length in range(text.prompt, len(text.ids)):
            ids = text.ids[:length]
            p, q = (
                sampler.distribution(
                    target.submit([(target.open(limits), Pass(ids=ids, positions=np.arange(length, dtype=np.int32)))])
                    .result()[0]
                    .logits[0],
                    ids,
                )
                for target in targets
            )
            chosen.append(float(p[q.argmax()]))
            drawn.append(float(np.minimum(p, q).sum()))
            written.append(p)
    assert table.positions == len(chosen) == 47 + 1
    small, same = table.drafts
    assert small.chosen == pytest.approx(np.mean(chosen), abs=1e-6)
    assert small.drawn == pytest.approx(np.mean(drawn), abs=1e-6)
    # The model as its own draft: the ceiling.
    assert table.ceiling.chosen == pytest.approx(np.mean([p.max() for p in written]), abs=1e-6)
    # A draft that says the same everywhere: the floor.
    mean = np.mean(written, axis=0)
    assert table.floor.chosen == pytest.approx(mean.max(), abs=1e-6)
    assert table.floor.drawn == pytest.approx(np.mean([np.minimum(p, mean).sum() for p in written]), abs=1e-6)
    assert same.chosen == pytest.approx(table.ceiling.chosen, abs=1e-6)
    assert same.drawn == pytest.approx(table.ceiling.drawn, abs=1e-5)


def test_a_draft_of_another_tokenizer_is_refused(pair: Pair, tmp_path: Path) -> None:
    from dataclasses import replace

    stranger = replace(pair.small, manifest=replace(pair.small.manifest, tokenizer_hash="0" * 64))
    with pytest.raises(UsageError, match="has another tokenizer than"):
        measure_acceptance(pair.large, [stranger], TEXTS, SAMPLING)


def encode(line: str) -> I32:
    return np.frombuffer(line.encode(), np.uint8).astype(np.int32)


def test_lines_are_cut_and_short_ones_left_out() -> None:
    texts = read_texts(["", "a" * PAST, "b" * (PAST + 1), "c" * (MOST_TOKENS + 5)], encode)
    assert [len(text.ids) for text in texts] == [PAST + 1, MOST_TOKENS]
    assert {text.prompt for text in texts} == {PAST}
    with pytest.raises(UsageError, match=f"no line of more than {PAST} tokens; give a longer --text"):
        read_texts(["", "short"], encode)


@pytest.mark.thorough
def test_the_texts_of_a_model_are_a_function_of_the_seed() -> None:
    from edgedec import demo
    from edgedec.bundle.bundle import Bundle

    bundle, sampling = Bundle.open(demo.bundle_path("demo-draft")), SamplingConfig(temperature=0.8, seed=3)
    first, second = (write_texts(bundle, sampling, samples=2, threads=1) for _ in range(2))
    assert len(first) == 2 * len(OPENINGS)
    assert all((a.ids == b.ids).all() and a.prompt == b.prompt for a, b in zip(first, second, strict=True))
    assert any(first[0].ids.tolist() != text.ids.tolist() for text in first[1:2])  # the two samples differ
