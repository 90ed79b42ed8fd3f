"""Check the places of results, which hosts of other versions rely on."""

from __future__ import annotations

from edgedec.hw.isa.output_layout import RESULT_BYTES, ROWS_OFFSET, TAP_PAGE_BYTES


def test_rows_of_logits_begin_at_the_second_page_and_a_result_has_two_words() -> None:
    assert (RESULT_BYTES, ROWS_OFFSET) == (8, 4096)


def test_tapped_values_begin_at_pages_of_4_kib() -> None:
    assert TAP_PAGE_BYTES == 4096
