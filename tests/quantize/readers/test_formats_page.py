"""Compare the page of formats with the readers' own tables."""

from __future__ import annotations

from tests.quantize.readers.support.make_formats_page import PAGE, page


def test_the_page_of_formats_is_that_of_the_readers_tables() -> None:
    text = PAGE.read_text("utf-8")
    assert text == page(text)
