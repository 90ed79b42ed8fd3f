"""Write a drafter, run a session with it, and print what its guesses were worth.

A drafter guesses tokens, and the model checks all guesses in one pass: the text stays the same whatever is guessed. This one
has read stories that are not the model's, and guesses the token that followed the last one most often in them.
docs/drafters.md says how a drafter becomes a plug-in of edgedec.

Run it from anywhere: ``.venv/bin/python examples/own_drafter.py``.
"""

from collections.abc import Mapping

import numpy as np

from edgedec import SamplingConfig, Session, SpecConfig
from edgedec.demo import HELD_OUT
from edgedec.runtime.protocols import I32, CostModel, Limits, Outcome, Sparse, TargetInfo, TokenTree

PROMPT = "Once upon a time"
GREEDY = SamplingConfig(temperature=0)


class Successors:
    """A drafter, and the draft that it opens: it learns nothing during a text, so that one object is enough.

    Parameters:
        ids: the text to learn from, int32 [n].
        vocab: the number of token ids.
    """

    taps: tuple[str, ...] = ()  # it needs no values of the model's graph

    def __init__(self, ids: I32, vocab: int) -> None:
        counts = np.zeros((vocab, vocab), np.int32)
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
        self.successor = counts.argmax(axis=1).astype(np.int32)  # [vocab]
        self.known = counts.sum(axis=1) > 0  # [vocab]

    def footprint(self, limits: Limits) -> Mapping[str, int]:
        """Return the bytes of a draft; the planner charges them to the memory budget."""
        return {"draft_table": self.successor.nbytes + self.known.nbytes}

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> "Successors":
        """Return the draft of a session."""
        return self

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        """Return the distribution of the token after each of ``nodes``; an empty one is no guess."""
        return [self.guess(token) for token in tree.tokens[nodes]]

    def guess(self, token: int) -> Sparse:
        """Return the likeliest successor with probability 1."""
        ids = self.successor[token : token + 1][self.known[token : token + 1]]
        return Sparse(ids=ids, probs=np.ones(len(ids), np.float32))

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        """Learn from the tokens that were accepted: this drafter does not."""


with Session.open("demo") as session:
    plain = session.generate(PROMPT, n_predict=200, sampling=GREEDY)
    drafter = Successors(session.tokenizer.encode(HELD_OUT.read_text("utf-8")), session.target.info.vocab)

with Session.open("demo", spec=SpecConfig(drafter=drafter, draft_max=2)) as session:
    answer = session.generate(PROMPT, n_predict=200, sampling=GREEDY)

rounds = answer.timings.rounds
print(f"{answer.timings.drafter}: {sum(rounds.accepted)} of {rounds.drafted} guesses accepted")
print(f"passes of the model: {rounds.count}, without a drafter {plain.timings.rounds.count}")
speeds = [timings.predicted_per_second for timings in (answer.timings, plain.timings)]
print(f"tokens per second: {speeds[0]:.0f}, without a drafter {speeds[1]:.0f}")
if not answer.timings.speculating:
    print("speculation was off at the end, because it lost time: this model is too small to gain from guesses")
print("the text is the same" if answer.tokens == plain.tokens else "the text is another one")
