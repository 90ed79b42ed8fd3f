"""``edgedec generate``: continue a text."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

from edgedec.cli.console import counted, has_colours, note, print_json, progress, read_text, text_output, write
from edgedec.cli.conversation_options import ConversationOptions
from edgedec.cli.options import Json, SanitizeUnlessPlain, Verbose, option
from edgedec.cli.run_options import RunOptions, TextOptions, command_line
from edgedec.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from edgedec.runtime.grammar.grammar import Grammar
    from edgedec.runtime.planning.speculation import SpecConfig
    from edgedec.runtime.protocols import I32
    from edgedec.runtime.sampling.sampling import SamplingConfig
    from edgedec.runtime.session.answer import Answer, Piece, Timings
    from edgedec.runtime.session.conversation import Conversation
    from edgedec.runtime.session.session import Session

__all__ = ["ctrl_c", "figures", "generate", "note_narrowed", "text_writer"]


@contextmanager
def text_writer(*, show_draft: bool) -> Iterator[Callable[[Piece], None]]:
    """Yield a function that writes text at once; with ``show_draft`` and colours, text of accepted guesses is green.

    Text of several tokens, such as a character of several bytes, has the colour of the last token.
    """
    with text_output() as put:
        if not (show_draft and has_colours()):
            yield put
            return
        from rich.style import Style

        green = Style(color="green")
        yield lambda piece: put(green.render(piece) if piece.guessed else piece)


def _speculation(timings: Timings) -> str:
    """Return the figures of the drafter; empty without one."""
    rounds = timings.rounds
    if timings.decoder is not None:
        return f"; {timings.decoder.text}; lossless: {timings.lossless}"
    if timings.drafter == "none" or not rounds.count:
        return ""
    accepted = sum(rounds.accepted)
    return (
        f"; drafter {timings.drafter}: {accepted} of {rounds.drafted} guesses accepted, "
        f"{1 + accepted / rounds.count:.1f} tokens per round"
        + ("" if timings.speculating else ", off at the end because it lost time")
        + f"; lossless: {timings.lossless}"
    )


def note_narrowed(session: Session, requested: SpecConfig) -> None:
    """Print a note if the plan left out the drafter, which explains the speed."""
    from edgedec.memory.byte_sizes import format_bytes

    if requested.drafter != "none" and session.run.spec.drafter == "none":
        from_bytes = session.run.plan.speculation_from_bytes
        more = f"it is faster from {format_bytes(from_bytes)} on" if from_bytes else "it is not faster with any budget"
        note(f"no speculation: the budget has no room for a drafter ({more}; see `edgedec plan`)")


def figures(answer: Answer) -> str:
    """Return the figures of an answer as text."""
    from edgedec.memory.byte_sizes import format_bytes

    timings = answer.timings
    kept = f" ({timings.prompt_kept} of them kept from before)" if timings.prompt_kept else ""
    text = (
        f"prompt: {counted(timings.prompt_n, 'token')}{kept}, {timings.prompt_per_second:.1f} per second; "
        f"answer: {counted(timings.predicted_n, 'token')}, {timings.predicted_per_second:.1f} per second; "
        f"ended by: {answer.stop_reason}"
    )
    text += _speculation(timings)
    if timings.peak_bytes and timings.accelerator is not None and timings.accelerator.facts.kind != "measured":
        text += f"; memory of the device: {format_bytes(timings.peak_bytes)}"
    elif timings.peak_bytes:
        text += f"; memory: {format_bytes(timings.peak_bytes)}, planned {format_bytes(timings.planned_bytes)}"
    if timings.accelerator is not None:
        text += f"\n{timings.accelerator.figures()}"
    if timings.disk is not None:
        text += f"\n{timings.disk.figures()}"
    if timings.keys is not None:
        text += f"\n{timings.keys.figures()}"
    return text


@contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after Ctrl-C. A second Ctrl-C ends the command at once.

    If Ctrl-C is ignored, as in a background job of a shell, it stays ignored.
    """
    pressed = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _prompt_text(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise UsageError("write the prompt either with -p TEXT or with -f FILE")
    if file is None:
        assert prompt is not None
        return prompt
    return read_text(file, "--file").removesuffix("\n")


def _grammar(json_schema: str | None, grammar: str | None, regex: str | None) -> Grammar | None:
    """Return the grammar of the options; None without any of them.

    Raises:
        UsageError: there are several, a file cannot be read, or the grammar is refused.
        ToolError: the package that follows grammars is not installed.
    """
    options = {"--json-schema": json_schema, "--grammar": grammar, "--regex": regex}
    given = [name for name, value in options.items() if value is not None]
    if not given:
        return None
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other; give one of them")
    from edgedec.runtime.grammar.grammar import Grammar

    if regex is not None:
        return Grammar.regex(regex)
    if grammar is not None:
        # No name of a file has these signs, which every rule of GBNF has.
        return Grammar.lark(grammar if "::=" in grammar else read_text(Path(grammar), "--grammar"))
    assert json_schema is not None
    inline = json_schema.lstrip().startswith("{")
    return Grammar.json_schema(json_schema if inline else read_text(Path(json_schema), "--json-schema"))


def _first_turn(conversation: Conversation, text: str) -> I32:
    """Return the prompt of a conversation with one message.

    Raises:
        UsageError: there is no chat template.
        EdgedecError: it refuses the message, or the message does not fit the context.
    """
    if conversation.is_plain:
        raise UsageError(
            "--chat: the model has no chat template; give one with --chat-template, or leave --chat out, and the text is "
            "continued as it is"
        )
    return conversation.ask(text)[0]


@command_line
def generate(
    run: RunOptions,
    writing: TextOptions,
    talk: ConversationOptions,
    prompt: Annotated[str | None, option("-p", "--prompt", metavar="TEXT", help="Text to continue.")] = None,
    file: Annotated[
        Path | None,
        option(
            "-f",
            "--file",
            metavar="FILE",
            help="Read the text from a file, or '-' for stdin, without its last newline.",
        ),
    ] = None,
    echo: Annotated[bool, option("--echo", help="Print the prompt before the answer.")] = False,
    chat: Annotated[
        bool, option("--chat", help="Answer the text as the first message of a conversation, by the chat template.")
    ] = False,
    sanitize_control_tokens: SanitizeUnlessPlain = None,
    samples: Annotated[
        int, option("--samples", min=1, max=1024, metavar="N", help="Number of texts to write, drawn independently.")
    ] = 1,
    json_schema: Annotated[
        str | None,
        option(
            "-j",
            "-jf",
            "--json-schema",
            "--json-schema-file",
            metavar="FILE|TEXT",
            help="The answer is a JSON value of this schema: a file, or the schema itself, which begins with '{'.",
        ),
    ] = None,
    grammar: Annotated[
        str | None,
        option(
            "--grammar",
            "--grammar-file",
            metavar="FILE|TEXT",
            help="The answer follows this grammar: a file in Lark's notation or in GBNF, or rules of GBNF, with '::='.",
        ),
    ] = None,
    regex: Annotated[
        str | None,
        option("--regex", metavar="TEXT", help="The answer is a text that this regular expression matches."),
    ] = None,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Continue a text, or answer it with --chat.

    The new text is printed on stdout as it is generated, and figures are printed on stderr.
    """
    text, sampling, spec = _prompt_text(prompt, file), writing.sampling(), replace(run.spec(), samples=samples)
    rules = _grammar(json_schema, grammar, regex)
    if talk.given and not chat:
        raise UsageError(f"{', '.join(talk.given)}: for conversations only; give --chat with it, or leave it out")
    talk.check()
    budget = run.find_budget()
    session = run.open_session(spec, budget)
    answers: list[Answer] = []
    with session, ctrl_c() as interrupted:
        note_narrowed(session, spec)
        sanitize = chat if sanitize_control_tokens is None else sanitize_control_tokens
        ids = (
            _first_turn(talk.open(session, sanitize=sanitize), text)
            if chat
            else session.encode(text, control_tokens=not sanitize)
        )
        if sampling.seed < 0:  # one seed for all samples, which differ by their index
            sampling = replace(sampling, seed=int.from_bytes(os.urandom(8), "little") >> 1)
        for sample in range(samples):
            if samples > 1 and not json:
                write(f"--- sample {sample + 1} of {samples} ---\n")
            shown = None if json else text if echo else ""
            answers.append(_answer(session, ids, writing, sampling, sample, interrupted, rules, shown=shown))
            if not json:
                note(figures(answers[-1]))
            if answers[-1].stop_reason == "interrupted":
                break
    if json:
        more = {} if samples == 1 else {"samples": [_as_json(answer) for answer in answers]}
        print_json({**_as_json(answers[0]), "budget": budget.as_json(), **more})
    if answers[-1].stop_reason == "interrupted":
        raise KeyboardInterrupt  # the command ends with the exit code of Ctrl-C


def _answer(
    session: Session,
    ids: I32,
    writing: TextOptions,
    sampling: SamplingConfig,
    sample: int,
    interrupted: Callable[[], bool],
    grammar: Grammar | None,
    *,
    shown: str | None,
) -> Answer:
    """Write one text. It appears after the text ``shown``, or not at all if that is None, but its progress does."""
    from edgedec.runtime.session.answer import Piece

    json = shown is None
    with ExitStack() as stack:
        # The text itself shows the progress; with --json, nothing is printed before the end.
        report = stack.enter_context(progress("generating") if json else progress("reading the prompt", once=True))
        put = None if json else stack.enter_context(text_writer(show_draft=writing.show_draft))
        if put is not None and shown:
            put(Piece(shown, guessed=False))

        def reading(label: str, done: int, total: int) -> None:
            report(label, done, total)
            if json and done == total:
                report("writing", 0, 1)

        try:
            answer = session.generate(
                ids,
                n_predict=writing.n_predict,
                sampling=sampling,
                stop=writing.stop,
                ignore_eos=writing.ignore_eos,
                grammar=grammar,
                sample=sample,
                on_text=put,
                interrupted=interrupted,
                progress=reading,
            )
        except DeviceError:
            if not json:
                write("\n")  # the error message begins on a new line
            raise
        if not json:
            write("\n")
    return answer


def _as_json(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "tokens": answer.tokens,
        "stop_reason": answer.stop_reason,
        "timings": answer.timings.as_json(),
    }
