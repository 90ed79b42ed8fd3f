"""Rounds of texts in the compiled loop (``runtime/loop``).

The loop runs the rounds whose parts are all compiled: drafters, policies with chosen children, the verifiers ``greedy`` and
``match``, and a target that lends its inputs. Other rounds run in Python, which is logged once for each reason. The texts
are the same.

While passes are short, a call runs several rounds and returns their tokens together.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.errors import CacheFullError, DeviceError
from edgedec.runtime.loop.flight import Flight, FlownText
from edgedec.runtime.loop.inputs import LoopInputs
from edgedec.runtime.loop.rounds import MOST_ROUNDS, Stop
from edgedec.runtime.protocols import F32, Request
from edgedec.runtime.rounds.compiled_text import DoneRounds, NextRounds, Together, say_python

__all__ = ["run_rounds"]

_LONG_SECONDS = 0.004  # a pass during which the tokens of the one before are read, also where readers would wait


def run_rounds(plans: Sequence[NextRounds]) -> list[DoneRounds | Exception] | None:
    """Run rounds of all texts, which have one target. The result is None if the loop cannot run them.

    Raises:
        DeviceError: the target failed.
        CacheFullError: the shared cache has no room for a pass.
    """
    lead = plans[0].text
    if (done := _read_flight(plans)) is not None:
        return done
    inputs = lead.lender.inputs
    rows = lead.nodes if len(plans) == 1 else sum([plan.nodes for plan in plans])
    if rows > inputs.arguments.rows:
        say_python(f"a pass has room for {inputs.arguments.rows} rows, and the texts together may have {rows}")
        return None
    if not lead.lender.joins(len(plans), guesses=any(plan.depth for plan in plans)):
        say_python("a pass has rows of one text only, or of fewer without guesses")
        return None
    if len(plans) > 1 and any(plan.depth and plan.text.draft.alone for plan in plans):
        say_python("several texts share the passes of a large draft model")
        return None
    together, rounds = _together(inputs, plans), _rounds(plans)
    if (rounds == 1 or (len(plans) > 1 and lead.pass_seconds > _LONG_SECONDS)) and _may_fly(plans):
        together.flight, rounds_ahead = _flight(together, plans)
        if together.flight.start(rounds_ahead, lead.request.pause) and (done := _read_flight(plans)) is not None:
            return done
    _prepare(plans, rounds)
    try:
        count = together.call.run(rounds, _seconds(plans), lead.request.pause)
    finally:
        for plan in plans:
            if plan.depth:
                plan.text.draft.finish()
    return _results(together, plans, count)


def _prepare(plans: Sequence[NextRounds], rounds: int) -> int:
    """Take the room for so many rounds, and set the arguments of the texts. Return for how many there is room."""
    rounds = _reserve(plans, rounds)
    wanted = [plan.text.request.top_k for plan in plans]
    plans[0].text.lender.want(max(wanted) if all(wanted) else 0)  # a text that needs whole rows gets them
    for plan in plans:
        plan.text.rounds.set_text(plan.length, plan.tokens)
        plan.text.rounds.set_size(plan.nodes, plan.depth)
        plan.text.rounds.set_growth(plan.growth)
    return rounds


def _may_fly(plans: Sequence[NextRounds]) -> bool:
    """Return whether the rounds of texts may go on while their tokens are read; those of several have no guesses."""
    lead = plans[0]
    if len(plans) > 1 and not lead.text.lender.frees_host:
        return False
    back = all(plan.state.slot is None and plan.state.goes_back and plan.tokens > 1 for plan in plans)
    return back and _seconds(plans) > 0 and bool(lead.text.passes)


def _flight(together: Together, plans: Sequence[NextRounds]) -> tuple[Flight, int]:
    """Return rounds of texts that go on while their tokens are read, and their number. They have not begun."""
    lead, rounds = plans[0], MOST_ROUNDS
    if lead.depth:
        rounds = min(rounds, lead.text.steady, lead.text.left or rounds)
    rounds = _prepare(plans, rounds)
    flown = [FlownText(plan.text.rounds, plan.state, plan.text.ids, plan.length) for plan in plans]
    for plan in plans:
        plan.text.flown = plan.nodes, plan.depth, plan.growth
    if not lead.depth:
        return Flight(together.call, lead.text.lender, flown), rounds
    return Flight(together.call, lead.text.lender, flown, lead.text.draft.lent, lead.text.draft.finish), rounds


def _read_flight(plans: Sequence[NextRounds]) -> list[DoneRounds | Exception] | None:
    """Return rounds of the flight that runs on the target; None if it is not these texts', or has ended. It lands then."""
    known = plans[0].text.lender.flight
    flight = None if known is None else known()
    if flight is None:
        return None
    if flight.is_of([(plan.text.rounds, plan.length) for plan in plans]):
        begin, end = flight.read()
        if end > begin:
            seconds = flight.call.pass_seconds[begin:end].tolist()
            for plan in plans:
                plan.text.passes.extend(seconds)
            return [DoneRounds(end - begin, seconds, begin)] * len(plans)
    flight.land()
    return None


def _together(inputs: LoopInputs, plans: Sequence[NextRounds]) -> Together:
    """Return the call of these texts, which is kept as long as the same texts take part."""
    last = plans[0].text.together
    if (
        last is not None
        and last.call.inputs is inputs
        and len(last.texts) == len(plans)
        and all(plan.text.together is last for plan in plans)
    ):
        return last
    # Sequences with common blocks are neighbours, so that attention reads these blocks once.
    order = sorted(plans, key=_table) if len(plans) > 1 else plans
    together = Together(plans[0].text.library, inputs, [plan.text.rounds for plan in order])
    for plan in plans:
        plan.text.together = together
    return together


def _table(plan: NextRounds) -> bytes:
    blocks, held = plan.state.reserve(0)
    return blocks[:, :held].tobytes()


def _seconds(plans: Sequence[NextRounds]) -> float:
    """Return the seconds after which the readers of all texts want tokens."""
    return min([plan.text.request.ahead_seconds for plan in plans])


def _rounds(plans: Sequence[NextRounds]) -> int:
    """Return the number of rounds of a call."""
    text, seconds = plans[0].text, _seconds(plans)
    guesses = any(plan.depth for plan in plans)
    if seconds <= 0 or (guesses and len(plans) > 1):  # the sizes of trees depend on what the other texts had
        return 1
    rounds = int(min(MOST_ROUNDS, 1 + seconds / max(1e-9, text.pass_seconds)))
    return min(rounds, text.steady, text.left or rounds) if guesses else rounds


def _reserve(plans: Sequence[NextRounds], rounds: int) -> int:
    """Take the blocks for the rounds, or for as many as there is room for, at least one of each text. Return their number.

    Rings have little more room than for a pass, so this is usual with them.

    Raises:
        CacheFullError: there is no room for one round of each.
        DeviceError: a device cannot be made to hold the rows of a text.
    """
    while True:
        try:
            for plan in plans:
                rows = plan.rows(rounds)
                if plan.depth:
                    plan.text.draft.reserve(plan.length + rows)
                blocks, held = plan.state.reserve(rows)
                plan.text.rounds.set_room(blocks, held, plan.state.slot)
            return rounds
        except (CacheFullError, DeviceError) as error:
            for plan in plans:
                plan.state.advance(plan.length - 1, plan.text.ids)
                if plan.depth:
                    plan.text.draft.finish()
            if rounds == 1 or isinstance(error, DeviceError):
                raise
            rounds //= 2


def _results(together: Together, plans: Sequence[NextRounds], count: int) -> list[DoneRounds | Exception] | None:
    """Return what the texts have of ``count`` rounds, and commit their rows."""
    results, inputs = list[DoneRounds | Exception](), together.call.inputs
    seconds = together.call.pass_seconds[:count].tolist()
    for plan in plans:
        rounds, arguments = plan.text.rounds, plan.text.rounds.arguments
        own = arguments.rounds
        plan.state.advance(plan.length - 1 + sum(rounds.path_sizes[:own].tolist()), plan.text.ids)
        if own:
            plan.text.passes.extend(seconds[:own])
            results.append(DoneRounds(own, seconds[:own]))
        elif arguments.stop == Stop.NO_TOKEN:
            results.append(_no_token(plan.text.request, inputs.logits, arguments.bad_row))
        elif arguments.stop == Stop.UNMOVED:
            why = inputs.move_error()
            results.append(DeviceError(f"the compiled loop could not commit rows of the cache: {why}"))
        else:
            results.append(DoneRounds(0, []))
    if count or any(isinstance(result, Exception) for result in results):
        return results  # after rounds that have finished, the next call meets a failure of the target again
    if plans[0].text.rounds.arguments.stop == Stop.FAILED:
        pasts = ", ".join(str(plan.length - 1) for plan in plans)
        raise DeviceError(f"a pass over {pasts} rows failed on cpu: {inputs.pass_error()}")
    return None


def _no_token(request: Request, logits: F32, row: int) -> Exception:
    """Return the error of Python's sampler for a row of logits that gives no token."""
    assert request.sampler is not None, "the rounds were made with it"
    try:
        request.sampler.distribution(logits[row], request.prompt)
    except Exception as error:
        return error
    return DeviceError(f"row {row} of a pass has no likeliest token; run `edgedec doctor`")
