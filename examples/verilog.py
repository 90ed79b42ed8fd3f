"""Choose the accelerator of a model for a board, estimate what it takes there, and write its Verilog.

Run it from anywhere: ``.venv/bin/python examples/verilog.py [FILE]`` writes FILE, which is ``accelerator.v`` where none is
named. It needs the extra ``hdl`` and about a minute. ``edgedec build-bitstream`` goes on from here to a bitstream.
"""

import sys
from pathlib import Path

from edgedec import Bundle, EdgedecError
from edgedec.boards import find_board
from edgedec.demo import bundle_path
from edgedec.hw.compiler.shapes import shape_model
from edgedec.hw.emit.verilog import accelerator_verilog, check_yosys
from edgedec.reference.integer_profile.model import integer_graph


def write_accelerator(file: Path, board_name: str) -> None:
    """Write the accelerator of the embedded model for a board as Verilog."""
    check_yosys()  # the modules below need Amaranth; this says so in one line if it is missing
    from edgedec.hw.plan.choose_board import config_for_board
    from edgedec.hw.plan.estimate import estimate

    model = shape_model(integer_graph(Bundle.open(bundle_path("demo"))))  # the weights' shapes decide, not their values
    board = find_board(board_name)
    config = config_for_board(model, board, slots=1, context=256)
    print(f"{board.name}: {config.beat_bytes} bytes of weights per cycle, {config.clock_hz / 1e6:.0f} MHz")
    for kind, count in estimate(config).on(board).items():
        print(f"  {count:>7} {kind}, estimated; the board has {board.has[kind]}")

    text, _ = accelerator_verilog(config, name="accelerator")
    file.write_text(text, "utf-8")
    print(f"wrote {file}: {text.count('endmodule')} modules, {text.count(chr(10))} lines")


try:
    write_accelerator(Path(sys.argv[1] if len(sys.argv) > 1 else "accelerator.v"), "ulx3s-85f")
except EdgedecError as error:
    sys.exit(f"error: {error}")
