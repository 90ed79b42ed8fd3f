"""Generate the greedy tokens of the bundles that earlier versions of edgedec wrote, which are kept as test data.

``bundles/version_N/NAME.edgedec`` is a bundle of version N of the format with random weights;
``bundles/version_N/tokens.json`` holds what ``generate`` returned for each of them on the day it was made.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgedec.bundle.bundle import Bundle
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.targets import open_target

__all__ = ["COUNT", "FOLDER", "PROMPT", "generate"]

FOLDER = Path(__file__).resolve().parents[1] / "bundles"
PROMPT = (1, 5, 9, 14)  # token ids
COUNT = 16  # tokens that follow the prompt


def generate(bundle: Bundle) -> tuple[list[int], float]:
    """Generate ``COUNT`` tokens greedily on the reference target.

    Returns:
        the tokens, and the smallest lead of a chosen logit over the next one.
    """
    limits = Limits(positions=len(PROMPT) + COUNT, nodes=len(PROMPT), depth=len(PROMPT))
    target = open_target(bundle, device="float_reference", limits=limits, kv_bits=32)
    state = target.open(limits)
    tokens: list[int] = []
    ids, lead = list(PROMPT), np.inf
    for _ in range(COUNT):
        positions = np.arange(state.length, state.length + len(ids), dtype=np.int32)
        (result,) = target.submit([(state, Pass(ids=np.array(ids, np.int32), positions=positions))]).result()
        state.commit(np.arange(len(ids), dtype=np.int32))
        second, first = np.argsort(result.logits[0, : bundle.tokens.size])[-2:]
        lead = min(lead, float(result.logits[0, first] - result.logits[0, second]))
        ids = [int(first)]
        tokens += ids
    return tokens, lead
