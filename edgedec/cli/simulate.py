"""``edgedec simulate``: simulate the accelerator, and compare it with the reference."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli._origins import flags_used
from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.cli.options import Json, Verbose, option, resolve_model
from edgedec.errors import EdgedecError, ToolError, UsageError
from edgedec.host.install_hint import install_extra
from edgedec.host.spelling import must_be_one_of

if TYPE_CHECKING:
    from edgedec.sim.verify.suite import SuiteReport
    from edgedec.sim.verify.token_run import TokenReport

__all__ = ["simulate"]

_PROMPT = "Once upon a time"
_MEMORIES = ("ddr", "flat", "ideal")
# Options of a run of tokens.
_FOR_TOKENS = ("tokens", "prompt", "beat_bytes", "slots", "memory", "save_program", "wave", "from_cycle", "to")


def simulate(
    ctx: typer.Context,
    bench: Annotated[
        str | None,
        option("--bench", metavar="NAME", help="Suite of comparisons, or 'all'; an unknown name lists the suites."),
    ] = None,
    model: Annotated[
        str | None, option("-m", "--model", metavar="BUNDLE", help="Folder of the bundle, or 'demo'.")
    ] = None,
    tokens: Annotated[int, option("--tokens", metavar="N", min=1, help="With -m: number of tokens to decode.")] = 4,
    prompt: Annotated[str, option("-p", "--prompt", metavar="TEXT", help="With -m: text to continue.")] = _PROMPT,
    beat_bytes: Annotated[int, option("--beat-bytes", metavar="N", help="Bytes per cycle of the accelerator.")] = 16,
    slots: Annotated[int, option("--slots", metavar="N", help="Tokens of a pass of the accelerator.")] = 4,
    memory: Annotated[
        str,
        option(
            "--memory",
            metavar="MODEL",
            help="Memory model: ddr (calibrated for the KV260), flat (13.3 GB/s) or ideal (no limit).",
        ),
    ] = "ddr",
    quick: Annotated[bool, option("--quick", help="With --bench: run fewer cases.")] = False,
    save_program: Annotated[
        Path | None,
        option("--save-program", metavar="FOLDER", help="With -m: also write the compiled program to this folder."),
    ] = None,
    wave: Annotated[
        Path | None,
        option(
            "--wave",
            metavar="FILE",
            help="With -m: write the signals of some cycles to this .vcd or .fst file, with views for GTKWave beside it.",
        ),
    ] = None,
    from_cycle: Annotated[
        int,
        option(
            "--from-cycle",
            "--from",
            metavar="CYCLE",
            help="With --wave: first cycle of the file; the simulation begins at 0.",
        ),
    ] = 0,
    to: Annotated[
        int | None, option("--to", metavar="CYCLE", help="With --wave: the cycle before which the file ends.")
    ] = None,
    terminal: Annotated[
        bool,
        option("--terminal", help="With -m: simulate the board's serial line until Ctrl-C, for --device uart:PORT."),
    ] = False,
    board: Annotated[
        str | None, option("--board", metavar="NAME", help="With --terminal: board; default: ulx3s-85f.")
    ] = None,
    configuration: Annotated[
        str | None,
        option(
            "--configuration",
            metavar="TEXT",
            help="With --terminal: configuration, as for build-bitstream; default: board.",
        ),
    ] = None,
    baud: Annotated[
        int,
        option("--baud", min=0, metavar="N", help="With --terminal: bits per second of the line; 0: the highest rate."),
    ] = 0,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Simulate the accelerator's RTL, and compare it with the integer reference.

    The first run of a configuration compiles it, which takes minutes; the result is kept. With --terminal, other commands
    can use the simulated board.
    """
    if (bench is None) == (model is None):
        raise UsageError("use either --bench NAME or -m BUNDLE")
    if not terminal and (board is not None or configuration is not None or baud):
        raise UsageError("--board, --configuration and --baud need --terminal; add it")
    if (bench is not None or terminal) and (flags := flags_used(ctx, *_FOR_TOKENS)):
        other = "--terminal" if terminal else "--bench"
        pronoun = "it" if len(flags) == 1 else "them"
        raise UsageError(f"{other} has no use for {', '.join(flags)}; leave {pronoun} out, or give -m BUNDLE alone")
    if bench is None and flags_used(ctx, "quick"):
        raise UsageError("--quick is for --bench; leave it out")
    if terminal and model is None:
        raise UsageError("--terminal needs the model of the accelerator; add -m BUNDLE")
    if find_spec("amaranth") is None:
        raise ToolError(f"the simulation needs Amaranth and yosys; run: {install_extra('hdl')}")
    if bench is not None:
        _run_suites(bench, quick=quick, json=json)
        return
    assert model is not None
    if terminal:
        from edgedec.cli._terminal import serve
        from edgedec.runtime.accelerator.options import LINE_BOARD

        serve(model, board=board or LINE_BOARD, configuration=configuration or "board", baud=baud, json=json)
        return
    sizes = {"beat_bytes": beat_bytes, "slots": slots}
    if wave is None and (flags := flags_used(ctx, "from_cycle", "to")):
        raise UsageError(f"{flags[0]} needs --wave FILE; add it")
    if wave is not None and to is None:
        raise UsageError("--wave needs the end of the waveform; add --to CYCLE")
    cycles = None if wave is None or to is None else (wave, from_cycle, to)
    _run_tokens(model, prompt, tokens, sizes, memory=memory, save_program=save_program, wave=cycles, json=json)


def _run_suites(bench: str, *, quick: bool, json: bool) -> None:
    from edgedec.sim.verify.suite import find, known

    results: dict[str, Any] = {}
    model = resolve_model("demo")
    for name in known() if bench == "all" else [bench]:
        suite, start = find(name), time.perf_counter()
        try:
            with progress(name) as report:
                suite_report = suite.run(model=model, quick=quick, progress=report)
        except EdgedecError:
            note(f"suite {name}, after {time.perf_counter() - start:.0f} s:")
            raise
        seconds = round(time.perf_counter() - start, 1)
        results[name] = {
            "what": suite_report.what,
            "compared": dict(suite_report.compared),
            "figures": dict(suite_report.figures),
            "kind": suite_report.kind,
            "coverage": None if suite_report.coverage is None else suite_report.coverage.as_json(),
            "left_out": suite_report.left_out,
            "seconds": seconds,
        }
        if not json:
            _print_suite(name, suite_report, seconds)
    if json:
        print_json({"simulated": True, "equal": True, "suites": results})


def _print_suite(name: str, suite_report: SuiteReport, seconds: float) -> None:
    print(f"{name}: equal ({seconds} s). {suite_report.what}")
    rows = [(f"  {what}", f"{count:,}") for what, count in suite_report.compared.items()]
    rows += [(f"  {what}, {suite_report.kind}", str(value)) for what, value in suite_report.figures.items()]
    print_table(rows)
    if suite_report.left_out:
        print(f"  left out by --quick: {suite_report.left_out}")
    if suite_report.coverage is not None:
        print("\n  How often each kind of descriptor, by its size, met each kind of stall (a dot: it cannot):\n")
        print(indent(suite_report.coverage.table(), "  ") + "\n")
    sys.stdout.flush()


def _run_tokens(
    name: str,
    prompt: str,
    tokens: int,
    sizes: Mapping[str, int],
    *,
    memory: str,
    save_program: Path | None,
    wave: tuple[Path, int, int] | None,
    json: bool,
) -> None:
    from edgedec.bundle.atomic import check_folder
    from edgedec.bundle.bundle import Bundle
    from edgedec.families import context_size
    from edgedec.hw.compiler.choose import small_config
    from edgedec.hw.compiler.program_file import MANIFEST as PROGRAM_FILE
    from edgedec.hw.compiler.program_file import save_program as save_program_to
    from edgedec.hw.compiler.shapes import shape_model
    from edgedec.reference.integer_profile.calibrate import calibrate
    from edgedec.reference.integer_profile.model import integer_graph, prepare
    from edgedec.runtime.text.tokenizer import Tokenizer
    from edgedec.sim.cxxrtl.wave import Wave
    from edgedec.sim.verify.token_run import TokenRun

    # Everything is checked before the calibration, which takes up to minutes.
    if not prompt:
        raise UsageError("the prompt is empty; give some text with -p")
    if memory not in _MEMORIES:
        raise UsageError(must_be_one_of("--memory", memory, _MEMORIES))
    if save_program is not None:
        check_folder(save_program, PROGRAM_FILE)
    waveform = None if wave is None else Wave(path=wave[0], first_cycle=wave[1], end_cycle=wave[2])
    bundle = Bundle.open(resolve_model(name))
    tokenizer = Tokenizer.load(bundle.tokenizer_file)
    ids = tokenizer.encode(prompt).tolist()
    limit, positions = context_size(bundle.config), len(ids) + tokens
    if positions > limit:
        raise UsageError(
            f"the prompt has {len(ids)} tokens, and --tokens {tokens} follow; the model's context holds {limit} in all"
        )
    context = 1 << max(6, (positions - 1).bit_length())
    try:
        config = small_config(shape_model(integer_graph(bundle)), **sizes, context=context)
    except UsageError as error:  # it names the member, which is the option's name
        member, _, rest = str(error).partition(" ")
        raise UsageError(f"--{member.replace('_', '-')} {rest}" if member in sizes else str(error)) from None
    with progress("preparing integers") as report:
        report("calibrate", 0, 1)
        integers = prepare(bundle, calibrate(bundle))
    with progress("building the simulation") as report:
        runner = TokenRun(integers, config, memory=memory, progress=report)
    if save_program is not None:
        save_program_to(runner.program, save_program)
    start = time.perf_counter()
    recorded = nullcontext() if waveform is None else waveform.of(runner.simulation)
    with progress("simulating") as report, recorded:
        token_report = runner.run(ids, tokens, progress=report)
    data = _summary(token_report, runner, time.perf_counter() - start, memory)
    if waveform is not None:
        data["wave"] = [str(path) for path in (waveform.path, *waveform.views.values())]
    data["text"] = tokenizer.decode([*token_report.prompt, *token_report.tokens])
    if json:
        print_json(data)
        return
    _print_tokens(data)


def _summary(token_report: TokenReport, runner: Any, seconds: float, memory: str) -> dict[str, Any]:
    config = runner.program.config
    decode, prefill = token_report.total(token_report.decode), token_report.total(token_report.prefill)
    passes = max(len(token_report.decode), 1)
    data: dict[str, Any] = {
        "simulated": True,
        "equal": True,
        "compared": token_report.compared,
        "prompt": list(token_report.prompt),
        "tokens": list(token_report.tokens),
        "prefill": {**prefill, "passes": len(token_report.prefill)},
        "decode": {**decode, "passes": len(token_report.decode)},
        "cycles_per_token": decode["cycles"] // passes if token_report.decode else None,
        "assumed_clock_hz": config.clock_hz,
        "simulated_tokens_per_second": (
            round(config.clock_hz * len(token_report.decode) / decode["cycles"], 1) if token_report.decode else None
        ),
        "memory": memory,
        "configuration": {"beat_bytes": config.beat_bytes, "slots": config.slots, "hash": f"{config.hash:016x}"},
        "instructions": len(runner.program.instructions),
        "seconds": round(seconds, 1),
    }
    return data


def _print_tokens(data: Mapping[str, Any]) -> None:
    size = data["configuration"]
    print(f"{data['text']}")
    print(
        f"\nRTL of {size['beat_bytes']} bytes per cycle and {size['slots']} slots, memory model {data['memory']}: "
        "equal to the integer reference in"
    )
    rows = [(f"  {what}", f"{count:,}") for what, count in data["compared"].items()]
    print_table(rows, right=(1,))
    if "wave" in data:
        print(f"waveform: {data['wave'][0]}; views for GTKWave: {', '.join(data['wave'][1:])}")
    rate = data["simulated_tokens_per_second"]
    if rate is not None:
        print(
            f"decoding: {data['cycles_per_token']:,} cycles a token, {rate} tokens/s simulated at an assumed clock of "
            f"{data['assumed_clock_hz'] / 1e6:.0f} MHz (RTL of all layers and logits; no other master of the memory, "
            "and the host takes no time)"
        )
