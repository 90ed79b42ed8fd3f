"""Write a drafter, run a session with it, and print what its guesses were worth.

A drafter guesses tokens, and the model checks all guesses in one pass: the text stays the same whatever is guessed. This one
remembers a text by its pairs of tokens, and guesses the token that followed a pair there. Here the model has told a story,
and is asked to tell it once more. docs/drafters.md says how a drafter becomes a plug-in of edgedec.

Run it from anywhere: ``.venv/bin/python examples/own_drafter.py``.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from edgedec import SamplingConfig, Session, SpecConfig
from edgedec.runtime.protocols import I32, CostModel, Limits, Outcome, Sparse, TargetInfo, TokenTree

GREEDY = SamplingConfig(temperature=0)
NO_GUESS = Sparse(ids=np.zeros(0, np.int32), probs=np.zeros(0, np.float32))
ENTRY_BYTES = 256  # approximate size of a pair and its successor in a dict


class Pairs:
    """A drafter, and the draft that it opens: it learns nothing while a text is written, so that one object is enough.

    Parameters:
        ids: the tokens of the text to remember.
    """

    taps: tuple[str, ...] = ()  # it needs no values of the model's graph

    def __init__(self, ids: Sequence[int]) -> None:
        self.successor = {(a, b): c for a, b, c in zip(ids, ids[1:], ids[2:], strict=False)}

    def footprint(self, limits: Limits) -> Mapping[str, int]:
        """Return the bytes that drafting takes; the planner charges them to the memory budget."""
        return {"draft_pairs": ENTRY_BYTES * len(self.successor)}

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> "Pairs":
        """Return the draft of a session."""
        return self

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        """Return the distribution of the token after each of ``nodes``; an empty one is no guess."""
        return [self.guess(text, tree, node) for node in nodes]

    def guess(self, text: I32, tree: TokenTree, node: int) -> Sparse:
        """Return the successor of a node and the token before it, with probability 1."""
        parent = tree.parents[node]
        before = tree.tokens[parent] if node else text[-2]  # node 0 is the last token of the text
        successor = self.successor.get((int(before), int(tree.tokens[node])))
        return (
            NO_GUESS if successor is None else Sparse(ids=np.array([successor], np.int32), probs=np.ones(1, np.float32))
        )

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        """Learn from the tokens that were accepted; this drafter does not."""


with Session.open("demo") as session:
    opening = "Once upon a time"
    story = opening + session.generate(opening, n_predict=350, sampling=GREEDY, stop=("\n\n",)).text
    words = story.split(" ")
    prompt = f"{story}\n\n{' '.join(words[: len(words) // 4])}"
    plain = session.generate(prompt, n_predict=80, sampling=GREEDY)
    drafter = Pairs(session.encode(story).tolist())

with Session.open("demo", spec=SpecConfig(drafter=drafter)) as session:
    answer = session.generate(prompt, n_predict=80, sampling=GREEDY)

rounds = answer.timings.rounds
print(f"{answer.timings.drafter}: {sum(rounds.accepted)} of {rounds.drafted} guesses accepted")
print(f"passes of the model: {rounds.count}, without a drafter {plain.timings.rounds.count}")
speeds = [timings.predicted_per_second for timings in (answer.timings, plain.timings)]
print(f"tokens per second: {speeds[0]:.0f}, without a drafter {speeds[1]:.0f}")
print("the text is the same" if answer.tokens == plain.tokens else "the text is another one")
