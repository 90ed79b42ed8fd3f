"""Test what a conversation keeps: after turns are dropped, the text is the one that the kept turns alone give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.errors import EdgedecError, UsageError
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.conversation import NEARLY_FULL, Conversation, Turn
from edgedec.runtime.session.session import Session

CONTEXT = 160
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
GREEDY = SamplingConfig(temperature=0)
MESSAGES = [
    "Tell me a story about a red boat.",
    "Who was in the boat?",
    "Tell me a story about a little dog and his big ball.",
    "What did the dog do?",
    "Tell me more about the boat.",
    "Why was he sad?",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(Bundle, "chat_template", TEMPLATE)  # its own template takes no system message
        yield demo.bundle_path("demo-draft")


@pytest.fixture
def session(model: Path) -> Iterator[Session]:
    with Session.open(model, ctx_size=CONTEXT, threads=1) as opened:
        yield opened


def say(conversation: Conversation, message: str, *, n_predict: int = 24) -> tuple[list[int], int]:
    """Return the tokens of the answer, and the number of dropped turns."""
    ids, dropped = conversation.ask(message)
    answer = conversation.session.generate(ids, n_predict=n_predict, sampling=GREEDY, ignore_eos=True)
    conversation.answered(message, answer.text, used=len(ids) + len(answer.tokens))
    return answer.tokens, dropped


@pytest.mark.thorough
@pytest.mark.parametrize("system", [None, "You tell stories."])
@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_after_a_drop_the_text_is_that_of_a_fresh_session(model: Path, drafter: str, system: str | None) -> None:
    spec, drops = SpecConfig(drafter=drafter), 0
    with Session.open(model, ctx_size=CONTEXT, threads=1, spec=spec) as session:
        conversation = Conversation(session, system=system)
        for message in MESSAGES:
            before = list(conversation.turns)
            tokens, dropped = say(conversation, message)
            assert conversation.turns[:-1] == before[dropped:]
            if not dropped:
                continue
            drops += 1
            with Session.open(model, ctx_size=CONTEXT, threads=1, spec=spec) as new_session:
                fresh = Conversation(new_session, system=system)
                fresh.turns = before[dropped:]
                assert say(fresh, message) == (tokens, 0)
            assert conversation.dropped >= dropped
    assert drops >= 2


def test_a_prompt_is_rendered_from_the_kept_turns(session: Session) -> None:
    conversation = Conversation(session, system="You tell stories.")
    for message in MESSAGES:
        ids, dropped = conversation.ask(message)
        turns = [{"role": "system", "content": "You tell stories."}]
        for turn in conversation.turns:
            turns += [{"role": "user", "content": turn.message}, {"role": "assistant", "content": turn.answer}]
        expected = session.encode_chat([*turns, {"role": "user", "content": message}])
        assert np.array_equal(ids, expected)
        assert len(ids) <= NEARLY_FULL * CONTEXT
        if dropped:
            assert len(ids) <= CONTEXT / 2, "so that not every message drops one"
        conversation.answered(message, "one two three four five six seven eight", used=len(ids) + 8)
    assert conversation.dropped
    assert len(conversation.turns) + conversation.dropped == len(MESSAGES)


def test_turns_are_dropped_until_half_of_the_context_is_free(session: Session) -> None:
    conversation = Conversation(session)
    ids = conversation.ask("Hello!")[0]
    while len(ids) <= NEARLY_FULL * CONTEXT:
        conversation.turns.append(Turn(message="Hello!", answer="Hello to you!"))
        ids = session.encode_chat(conversation._messages(conversation.turns, "Hello!"))
    turns = list(conversation.turns)
    _, dropped = conversation.ask("Hello!")
    assert conversation.turns == turns[dropped:]
    sizes = [len(session.encode_chat(conversation._messages(turns[n:], "Hello!"))) for n in (dropped - 1, dropped)]
    assert sizes[1] <= CONTEXT / 2 < sizes[0]


def test_a_long_message_drops_more_turns(session: Session) -> None:
    """Check that a turn that still fits beside it is kept, though the message is longer than half the context."""
    conversation = Conversation(session)
    conversation.turns = [Turn(message="boat " * 12, answer="boat " * 12), Turn(message="Hello!", answer="Hello!")]
    long = "boat " * 80
    ids, dropped = conversation.ask(long)
    assert (dropped, [turn.answer for turn in conversation.turns]) == (1, ["Hello!"])
    assert CONTEXT / 2 < len(ids) <= NEARLY_FULL * CONTEXT


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize(("words", "takes"), [(300, r"\d+ tokens"), (4000, r"[\d,]+ characters")])
def test_a_message_larger_than_the_context_is_refused(session: Session, shift: bool, words: int, takes: str) -> None:
    conversation = Conversation(session, system="You tell stories.", shift=shift)
    message = rf"the message takes {takes} with the system message, the context holds {CONTEXT} tokens and needs one"
    with pytest.raises(EdgedecError, match=message):
        conversation.ask("boat " * words)
    say(conversation, MESSAGES[0])
    before = list(conversation.turns)
    if shift:
        with pytest.raises(EdgedecError, match=message):
            conversation.ask("boat " * words)
    assert (conversation.turns, conversation.dropped) == (before, 0)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("system", [None, ""])
@pytest.mark.parametrize(
    ("template", "adds"), [(TEMPLATE, " with the template's additions"), (None, "")], ids=["template", "plain text"]
)
def test_a_refusal_mentions_a_template_only_if_there_is_one(
    session: Session, monkeypatch: pytest.MonkeyPatch, template: str | None, adds: str, system: str | None
) -> None:
    monkeypatch.setattr(Bundle, "chat_template", template)
    with pytest.raises(EdgedecError, match=rf"the message takes \d+ tokens{adds}, the context holds {CONTEXT} tokens"):
        Conversation(session, system=system).ask("boat " * 300)


def test_without_a_shift_a_full_conversation_is_refused_with_its_numbers(session: Session) -> None:
    conversation = Conversation(session, shift=False)
    conversation.turns = [Turn(message="boat " * 30, answer="boat " * 30)] * 2
    turns = list(conversation.turns)
    count = len(session.encode_chat(conversation._messages(turns, "boat " * 40)))
    assert count >= CONTEXT
    with pytest.raises(
        EdgedecError,
        match=rf"take {count} tokens, the context holds {CONTEXT} tokens; leave out --no-context-shift, so that the oldest",
    ):
        conversation.ask("boat " * 40)
    assert (conversation.turns, conversation.dropped) == (turns, 0)
    ids, dropped = conversation.ask("boat " * 2)
    assert (len(ids) > NEARLY_FULL * CONTEXT, dropped) == (True, 0), "what fits is taken, to the last token"


PICKY = "{% if 'rude' in messages[0].content %}{{ raise_exception('no such system message') }}{% endif %}" + TEMPLATE


def test_a_system_message_that_the_template_refuses_is_found_at_once(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    Conversation(session, system="Be kind.").check_system()
    monkeypatch.setattr(Bundle, "chat_template", PICKY)
    Conversation(session).check_system()
    with pytest.raises(EdgedecError, match="no such system message"):
        Conversation(session, system="Be rude.").check_system()
    monkeypatch.setattr(Bundle, "chat_template", "{{ raise_exception('nothing at all') }}")
    Conversation(session, system="Be kind.").check_system()  # it is not because of the system message
    monkeypatch.setattr(Bundle, "chat_template", None)
    Conversation(session, system="Be kind.").check_system()


def test_the_place_of_bad_unicode_counts_in_what_was_typed(session: Session) -> None:
    conversation = Conversation(session, system="You tell stories.")
    say(conversation, MESSAGES[0], n_predict=4)
    with pytest.raises(UsageError, match=r"^the text is not valid Unicode at character 3; give it as UTF-8$"):
        conversation.ask("abc\udce9")
    with pytest.raises(UsageError, match=r"at character 2;"):
        Conversation(session, system="ab\udce9").check_system()


def test_dropped_turns_are_counted_until_the_reset(session: Session) -> None:
    conversation, dropped = Conversation(session), []
    for _ in range(2):
        conversation.turns = [Turn(message="boat " * 30, answer="boat " * 20)] * 3
        dropped.append(conversation.ask("Why?")[1])
    assert min(dropped) > 0
    assert conversation.dropped == sum(dropped)
    conversation.reset()
    assert (conversation.turns, conversation.dropped, conversation.used) == ([], 0, 0)


@pytest.mark.thorough
def test_a_prompt_leaves_one_token_for_the_answer(session: Session) -> None:
    conversation, longest = Conversation(session, shift=False), ""
    for count in range(CONTEXT):
        message = "boat" + " boat" * count
        tokens = len(session.encode_chat(conversation._messages([], message)))
        if tokens == CONTEXT - 1:
            longest = message
            assert len(conversation.ask(message)[0]) == CONTEXT - 1
        if tokens == CONTEXT:
            with pytest.raises(EdgedecError, match=f"the message takes {CONTEXT} tokens"):
                conversation.ask(message)
            break
    assert longest


def test_a_conversation_is_nearly_full_from_the_limit_on(session: Session) -> None:
    conversation = Conversation(session)
    for used, nearly_full in ((127, False), (128, True), (129, True)):  # the context has 160 tokens
        conversation.used = used
        assert conversation.nearly_full == nearly_full
