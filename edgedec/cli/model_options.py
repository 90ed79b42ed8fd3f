"""The options that name the model, and the spellings of llama.cpp for the type of its cache."""

from __future__ import annotations

from typing import Annotated

import typer

from edgedec.cli.options import memory_option
from edgedec.errors import UsageError
from edgedec.host.spelling import must_be_one_of

__all__ = ["CACHE_TYPES", "CacheTypeK", "CacheTypeV", "ModelWord", "cache_bits", "one_model"]

# Type of llama.cpp's cache -> bits of keys and values here.
CACHE_TYPES = {"f32": 32, "f16": 16, "q8_0": 8, "q4_0": 4}

ModelWord = Annotated[
    str | None, typer.Argument(metavar="BUNDLE", show_default=False, help="The bundle, in place of -m BUNDLE.")
]
CacheTypeK = Annotated[
    str | None,
    memory_option(
        "-ctk",
        "--cache-type-k",
        metavar="TYPE",
        help="llama.cpp's spelling of --kv-bits: f16, q8_0, q4_0 or f32, the same for -ctk and -ctv.",
    ),
]
CacheTypeV = Annotated[str | None, memory_option("-ctv", "--cache-type-v", metavar="TYPE", help="The same for values.")]


def cache_bits(keys: str | None, values: str | None, kv_bits: int | None) -> int | None:
    """Return the bits of keys and values that ``-ctk`` and ``-ctv`` mean, or ``kv_bits`` without them.

    Raises:
        UsageError: a type is unknown, or the options disagree. One that is not given is f16, as in llama.cpp.
    """
    if keys is None and values is None:
        return kv_bits
    for flag, kind in (("-ctk", keys), ("-ctv", values)):
        if kind is not None and kind not in CACHE_TYPES:
            raise UsageError(must_be_one_of(flag, kind, CACHE_TYPES))
    if (keys or "f16") != (values or "f16"):
        kind = keys if keys not in (None, "f16") else values
        raise UsageError(
            f"-ctk {keys or 'f16'} and -ctv {values or 'f16'} differ, and keys and values have the same bits here; give "
            f"-ctk {kind} -ctv {kind}, or --kv-bits {CACHE_TYPES[kind or 'f16']}"
        )
    bits = CACHE_TYPES[keys or values or "f16"]
    if kv_bits not in (None, bits):
        raise UsageError(f"--kv-bits {kv_bits} and -ctk {keys or values} differ; give one of them")
    return bits


def one_model(ctx: typer.Context, word: str | None, model: str | None) -> str | None:
    """Return the bundle that is given as a word or with ``-m``; a word is stronger than the environment and files.

    Raises:
        UsageError: both are on the command line.
    """
    source = ctx.get_parameter_source("model")
    if word is not None and source is not None and source.name == "COMMANDLINE":
        raise UsageError(f"{word!r} and -m {model} are two models; give one of them")
    return word if word is not None else model
