"""``edgedec chat``: talk with a model by its own chat template."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from edgedec.bundle.embedded import ABOUT
from edgedec.cli._talk import Talk
from edgedec.cli.console import note, read_text
from edgedec.cli.conversation_options import ConversationOptions
from edgedec.cli.generate import note_narrowed
from edgedec.cli.options import SanitizeControlTokens, Verbose, option
from edgedec.cli.run_options import RunOptions, TextOptions, command_line
from edgedec.errors import UsageError

__all__ = ["chat"]


def _first_message(prompt: str | None, file: Path | None) -> str | None:
    if prompt is not None and file is not None:
        raise UsageError("write the first message either with -p TEXT or with -f FILE")
    return prompt if file is None else read_text(file, "--file").removesuffix("\n")


@command_line
def chat(
    run: RunOptions,
    writing: TextOptions,
    about: ConversationOptions,
    prompt: Annotated[str | None, option("-p", "--prompt", metavar="TEXT", help="First message.")] = None,
    file: Annotated[
        Path | None, option("-f", "--file", metavar="FILE", help="Read the first message from a file.")
    ] = None,
    single_turn: Annotated[
        bool, option("-st", "--single-turn", help="End after the answer to the first message.")
    ] = False,
    no_context_shift: Annotated[
        bool,
        option(
            "--no-context-shift",
            help="Refuse messages that do not fit the context, instead of dropping the oldest turns.",
        ),
    ] = False,
    sanitize_control_tokens: SanitizeControlTokens = True,
    verbose: Verbose = 0,
) -> None:
    """Talk with a model.

    Lines that begin with a slash are commands; /help lists them.
    """
    first = _first_message(prompt, file)
    about.check()
    sampling, spec = writing.sampling(), run.spec()
    if run.model in ABOUT:
        note(f"{run.model}: {ABOUT[run.model]}")
    session = run.open_session(spec, run.find_budget())
    with session:
        note_narrowed(session, spec)
        conversation = about.open(session, shift=not no_context_shift, sanitize=sanitize_control_tokens)
        talk = Talk(conversation, writing, sampling)
        if hasattr(sys.stdin, "reconfigure"):
            sys.stdin.reconfigure(errors="surrogateescape")  # the tokenizer reports what is wrong with such a line
        if talk.conversation.is_plain:
            note(
                f"{run.model}: the model has no chat template; messages and answers are lines of one plain text, which the "
                "model continues"
            )
        interactive = sys.stdin.isatty()
        if interactive:
            note(f"context {session.run.limits.positions} tokens; /help lists the commands")
        with talk.interrupts.installed():
            talk.run("> " if interactive else "", first=first, single=single_turn)
        if talk.failures and not talk.answers and (single_turn or not interactive):
            last = talk.failures[-1]
            raise type(last)("no message was answered; the reasons are in the lines above") from last
