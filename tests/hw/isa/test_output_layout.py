"""Check the places of results, which hosts of other versions rely on."""

from __future__ import annotations

from edgedec.hw.isa.output_layout import RESULT_BYTES, ROWS_OFFSET


def test_rows_of_logits_begin_at_the_second_page_and_a_result_has_two_words() -> None:
    assert (RESULT_BYTES, ROWS_OFFSET) == (8, 4096)
