"""Write two texts with a board bundle, in a process of its own: on a simulated board through pynq, or on the interpreter.

    echo MESSAGE | python write_on_simulated_board.py [--device interpreter] BUNDLE TOKENS

The first line printed has the versions of Python, NumPy and pynq, the second is the text of ``edgedec generate``, and the
third is the answer of ``edgedec chat`` to the message. Both run with the simulated board in the place of the board that pynq
would find, and each opens it anew.
"""

from __future__ import annotations

import functools
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any


def put_simulated_board() -> str:
    """Let device pynq find a simulated board, and return pynq's version."""
    import pynq

    from edgedec.device import open_device
    from edgedec.hw.handoff.read import read_handoff
    from edgedec.runtime.devices import pynq as device
    from edgedec.sim.boards.pynq_board import SimulatedBoard

    original = device.open_device

    @functools.wraps(original)
    def open_simulated(config: Any, *, bitstream: Path, **_: Any) -> Any:
        rtlil_hash = read_handoff(bitstream.with_suffix(".hwh")).rtlil_hash
        board = SimulatedBoard(open_device("interpreter", config, rtlil_hash=rtlil_hash))
        folder = Path(tempfile.mkdtemp())
        (folder / "meminfo").write_text("MemTotal: 4000000 kB\nCmaTotal: 1048576 kB\nCmaFree: 65536 kB\n")
        return original(
            config, bitstream=bitstream, board=board, clock=board.clock, lock_folder=folder, meminfo=folder / "meminfo"
        )

    device.open_device = open_simulated
    return str(pynq.__version__)


def edgedec(command: str, bundle: str, device: str, tokens: str, *options: str) -> None:
    """Run a command of edgedec in this process.

    Raises:
        SystemExit: the command failed.
    """
    from edgedec.cli.app import main as run

    sys.argv = ["edgedec", command, "-m", bundle, "--device", device, "-n", tokens, "--temp", "1", "--seed", "7"]
    sys.argv += ["--ignore-eos", *options]
    try:
        run()
    except SystemExit as end:
        if end.code:
            raise


def main() -> None:
    arguments = sys.argv[1:]
    device = "pynq"
    if arguments[0] == "--device":
        device, arguments = arguments[1], arguments[2:]
    bundle, tokens = arguments
    version = put_simulated_board() if device == "pynq" else "none"

    import numpy as np

    words = (f"Python {platform.python_version()}", platform.machine(), f"NumPy {np.__version__}", f"pynq {version}")
    print(*words, sep=", ", flush=True)
    edgedec("generate", bundle, device, tokens, "-p", "w1 w2 w3")
    edgedec("chat", bundle, device, tokens)


if __name__ == "__main__":
    main()
