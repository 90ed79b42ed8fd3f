"""Test embeddings: equal to the reference's, the same in any company, and planned before they are taken."""

from __future__ import annotations

import doctest
from collections.abc import Iterator

import numpy as np
import pytest

from edgedec import demo
from edgedec.errors import EdgedecError, UsageError
from edgedec.runtime import pooling
from edgedec.runtime.model_graph import last_layer
from edgedec.runtime.pooling import POOLINGS, PooledRows, Pooling
from edgedec.runtime.protocols import F32, I32, Limits, Pass
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import open_target

TEXT = "Once upon a time there was a cat. It had a red hat, and it liked to sit by the old tree and look at the birds."
GREEDY = SamplingConfig(temperature=0)
TOLERANCE = 1e-6  # largest difference between vectors of length 1; the kernels round to float32 more often


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Return the embedded model for three texts at a time."""
    with Session.open(demo.bundle_path(), threads=1, ctx_size=256, sequences=3, embeddings=True) as opened:
        yield opened


def reference(session: Session, ids: I32, kind: Pooling) -> F32:
    """Return the embedding of one pass of the float reference."""
    tap, _ = last_layer(session.bundle)
    limits = Limits(nodes=len(ids), depth=0, positions=256)
    kv_bits = session.run.plan.kv_bits
    target = open_target(session.bundle, device="float_reference", limits=limits, taps=(tap,), kv_bits=kv_bits)
    work = Pass(ids=ids, positions=np.arange(len(ids), dtype=np.int32), taps=(tap,))
    (result,) = target.submit([(target.open(limits), work)]).result()
    rows = result.taps[tap].astype(np.float64)
    vector = rows.mean(axis=0) if kind == "mean" else rows[-1]
    return np.array(vector / np.linalg.norm(vector), np.float32)


def test_the_example_is_right() -> None:
    assert doctest.testmod(pooling, extraglobs={"np": np}).failed == 0


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("kind", POOLINGS)
def test_an_embedding_is_that_of_the_reference(session: Session, kind: Pooling) -> None:
    ids = session.encode(TEXT)
    assert len(ids) > session.run.limits.nodes, "the text is read in several passes"
    found = session.embed(ids, pooling=kind)
    assert found.dtype == np.float32
    assert found.shape == (session.embedding_size,)
    assert np.abs(found - reference(session, ids, kind)).max() < TOLERANCE
    other = session.embed("Birds can fly.", pooling=kind)
    assert np.abs(found - other).max() > 100 * TOLERANCE


def test_a_recurrent_model_has_embeddings() -> None:
    with Session.open(demo.bundle_path("demo-hybrid"), threads=1, ctx_size=256, embeddings=True) as hybrid:
        ids = hybrid.encode(TEXT)
        assert np.abs(hybrid.embed(ids) - reference(hybrid, ids, "mean")).max() < TOLERANCE


def test_company_changes_no_embedding_and_no_text(session: Session) -> None:
    texts = [TEXT, TEXT[:40] + " dog.", "Birds can fly.", "Ben ran."]
    alone = [session.embed(text) for text in texts]
    written = session.generate("Tell me", n_predict=60, sampling=GREEDY).text
    stream = session.stream("Tell me", n_predict=60, sampling=GREEDY)
    rows = [PooledRows("mean") for _ in texts]
    streams = [session.stream(text, on_rows=own.add) for text, own in zip(texts, rows, strict=True)]
    assert "".join(stream) == written
    for other in streams:
        assert "".join(other) == ""
    assert all((own.vector() == expected).all() for own, expected in zip(rows, alone, strict=True))


def test_a_text_that_is_cached_is_read_again_and_then_shared(session: Session) -> None:
    text = session.generate(TEXT, n_predict=4, sampling=GREEDY).text
    expected = session.embed(TEXT)
    assert (session.embed(TEXT) == expected).all()
    answer = session.generate(TEXT, n_predict=4, sampling=GREEDY)
    assert answer.text == text
    assert answer.timings.prompt_kept == answer.timings.prompt_n - 1, "the rows of the embedding serve the text"


def test_the_rows_are_planned(session: Session) -> None:
    with Session.open(demo.bundle_path(), threads=1, ctx_size=256, sequences=3) as plain:
        less = plain.run.plan.total_bytes
        with pytest.raises(UsageError, match="opened without embeddings; open it with embeddings=True"):
            plain.embed("x")
    needed = 4 * session.run.limits.batch_rows * session.embedding_size
    assert session.run.plan.total_bytes - less >= needed


def test_what_has_no_embedding_is_refused(session: Session) -> None:
    with pytest.raises(EdgedecError, match="the context holds 256"):
        session.embed(np.zeros(256, np.int32))
    with pytest.raises(UsageError, match="pooling must be mean or last, not 'cls'"):
        PooledRows("cls")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="nothing to pool"):
        PooledRows("mean").vector()
    zero = PooledRows("last")
    zero.add(np.zeros((2, 3), np.float32))
    assert zero.vector().tolist() == [0, 0, 0]
