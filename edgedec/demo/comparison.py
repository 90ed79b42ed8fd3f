"""The demo's comparison of plain decoding with speculation, on the same texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from edgedec.runtime.answer import Answer
from edgedec.runtime.sampling import SamplingConfig
from edgedec.runtime.session import Session

__all__ = ["PLAIN", "TASKS", "DemoTask", "Measured", "compare", "retelling", "verdict"]

PLAIN = "none"  # the drafter that never guesses

_GREEDY = SamplingConfig(temperature=0)  # the text is the same with every drafter
_TOKENS = 96  # tokens of each run
_RUNS = 3  # runs of each drafter, which take turns
_BEGUN_AGAIN = 0.25  # share of a story that a prompt repeats

Open = Callable[[str], Session]


@dataclass(frozen=True, kw_only=True)
class DemoTask:
    """A text to write, and the drafter that plain decoding is compared with.

    Members:
        name: name in the table.
        drafter: value of ``--spec-type``.
        again: True if the prompt is the story followed by its beginning; False if it is the story's opening.
    """

    name: str
    drafter: str
    again: bool


TASKS = (
    DemoTask(name="retold", drafter="copy", again=True),
    DemoTask(name="new", drafter="model", again=False),
)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All runs of one drafter on one task.

    Members:
        drafted, accepted: number of guesses, and of accepted guesses, in all runs.
        tokens: number of tokens that all runs wrote.
        passes: number of passes of the target after the prompts.
        tokens_per_second: median over the runs.
        same_text: True if every run wrote the text of plain decoding.
    """

    task: DemoTask
    drafter: str
    drafted: int
    accepted: int
    tokens: int
    passes: int
    tokens_per_second: float
    same_text: bool

    @property
    def accepted_share(self) -> float:
        """Return the accepted share of the guesses, from 0 to 1."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """Return the tokens written for each pass of the target; 1 without guesses."""
        return self.tokens / self.passes


def retelling(story: str, share: float = _BEGUN_AGAIN) -> str:
    """Return a prompt with a story and its beginning again, so that the continuation copies the story.

    Args:
        share: share of the story's words that the prompt repeats.
    """
    words = story.split(" ")
    return f"{story}\n\n{' '.join(words[: max(1, int(share * len(words)))])}"


def compare(open_session: Open, opening: str, story: str) -> list[tuple[Measured, Measured]]:
    """Return, for each of ``TASKS``, the figures of plain decoding and those of the task's drafter.

    Runs take turns, so that other work on the machine slows both alike.

    Args:
        open_session: opens a session with the drafter of a name; all sessions are open at the same time.
        opening: opening of the story.
        story: story that the model wrote, including the opening.

    Raises:
        EdgedecError: a session cannot be opened, or the prompt does not fit its context.
    """
    with ExitStack() as stack:
        names = [PLAIN, *(task.drafter for task in TASKS)]
        sessions = {name: stack.enter_context(open_session(name)) for name in names}
        return [_measured(sessions, task, retelling(story) if task.again else opening) for task in TASKS]


def _measured(sessions: Mapping[str, Session], task: DemoTask, prompt: str) -> tuple[Measured, Measured]:
    answers: dict[str, list[Answer]] = {PLAIN: [], task.drafter: []}
    for _ in range(_RUNS):
        for drafter, runs in answers.items():
            session = sessions[drafter]
            answer = session.generate(session.encode(prompt), n_predict=_TOKENS, sampling=_GREEDY, ignore_eos=True)
            runs.append(answer)
    text = answers[PLAIN][0].tokens
    plain, guessed = (_summed(task, drafter, runs, text) for drafter, runs in answers.items())
    return plain, guessed


def _summed(task: DemoTask, drafter: str, runs: Sequence[Answer], text: Sequence[int]) -> Measured:
    rounds = [answer.timings.rounds for answer in runs]
    return Measured(
        task=task,
        drafter=drafter,
        drafted=sum(one.drafted for one in rounds),
        accepted=sum(sum(one.accepted) for one in rounds),
        tokens=sum(len(answer.tokens) for answer in runs),
        passes=sum(one.count for one in rounds),
        tokens_per_second=median(answer.timings.predicted_per_second for answer in runs),
        same_text=all(answer.tokens == text for answer in runs),
    )


def verdict(plain: Measured, guessed: Measured) -> str:
    """Return a sentence about the measured benefit of the guesses."""
    ratio = guessed.tokens_per_second / plain.tokens_per_second
    what = f"{guessed.task.name} story, drafter {guessed.drafter}: {ratio:.2f} times the speed of plain decoding"
    return what if ratio >= 1 else f"{what}, so guessing loses time here"
