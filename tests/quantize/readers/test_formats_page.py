"""Compare the pages of formats with the readers' own tables."""

from __future__ import annotations

import re

from edgedec.quantize.readers.gguf import blocks, i2s, models
from edgedec.quantize.readers.tokenizers import byte_tokenizer
from tests.quantize.readers.support.make_formats_page import PAGE, page

GGUF = PAGE.with_name("gguf.md")


def test_the_page_of_formats_is_that_of_the_readers_tables() -> None:
    text = PAGE.read_text("utf-8")
    assert text == page(text)


def test_the_page_of_gguf_names_what_is_read_and_counts_the_vocabularies() -> None:
    rows = dict(re.findall(r"^\| (tensors|architectures|vocabularies) \| (.*) \|$", GGUF.read_text("utf-8"), re.M))
    read = blocks._FLOATS.keys() | blocks._DECODERS.keys() | {i2s.I2_S.name}
    own = rows["tensors"].replace(", and PrismML's ", ", ").replace(" and ", ", ").split(". The other")[0]
    assert set(own.split(", ")) == read
    assert set(re.findall(r"`([\w.-]+)`", rows["architectures"])) == models.ARCHITECTURES.keys()
    assert f" {len(byte_tokenizer.CUTS)} names of `tokenizer.ggml.pre`" in rows["vocabularies"]
