from __future__ import annotations

from benchmarks.accelerator import resources as accelerator_estimate
from benchmarks.support.docs_tables import block_names, outdated_blocks
from edgedec.board import USABLE
from edgedec.boards import find_board
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.plan.estimate import estimate


def test_the_page_has_the_shares_that_the_estimator_gives() -> None:
    tables = accelerator_estimate.share_tables()
    assert outdated_blocks(tables) == [], "run python -m benchmarks.accelerator.resources --write-docs"
    assert {name for name in block_names() if name.startswith("estimate ")} == tables.keys()


def test_the_page_gives_the_limits_of_the_code() -> None:
    (table,) = accelerator_estimate.share_tables().values()
    *_, limits = table.splitlines()
    cells = [cell.strip() for cell in limits.strip("|").split("|")]
    assert cells == ["usable", f"{USABLE['lut']:.0%}".replace("%", " %"), "100 %", "75 %", "75 %", "65 %"]


def test_the_default_configuration_fits_the_kv260() -> None:
    board, expected = find_board("kv260"), estimate(AcceleratorConfig())
    assert expected.beyond(board) == []
    assert expected.on(board)["lut"] < 0.75 * board.has["lut"]
