"""``edgedec export``: write a bundle in a format of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.cli.options import Json, Verbose, option, resolve_model
from edgedec.errors import UsageError
from edgedec.host.install_hint import check_installed
from edgedec.host.spelling import must_be_one_of

__all__ = ["export"]

FORMATS = ("gguf", "onnx", "safetensors", "web")


def export(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Folder of the bundle, or 'demo'.")],
    output: Annotated[Path, option("-o", "--output", metavar="PATH", help="File (gguf) or folder to write.")],
    format: Annotated[str, option("--format", metavar="NAME", help="Format: gguf, onnx, safetensors or web.")] = "gguf",
    model_draft: Annotated[
        str | None,
        option("-md", "--model-draft", metavar="BUNDLE", help="With onnx: draft model to add to the export."),
    ] = None,
    ctx_size: Annotated[
        int,
        option("-c", "--ctx-size", metavar="N", help="With web: context in tokens; 0: the model's, at most 2048."),
    ] = 0,
    kv_bits: Annotated[
        int | None, option("--kv-bits", metavar="N", help="With web: bits of keys and values: 16 (default), 8 or 32.")
    ] = None,
    type: Annotated[
        str,
        option(
            "--type",
            metavar="NAME",
            help="With gguf: type of the matrices: auto, or f16, which rounds them to float16 for readers that know little.",
        ),
    ] = "auto",
    trits: Annotated[
        str,
        option("--trits", metavar="TYPE", help="With gguf: type of ternary matrices: auto, TQ2_0, Q2_0 or F16."),
    ] = "auto",
    llama_cpp_spaces: Annotated[
        bool,
        option(
            "--llama-cpp-spaces", help="With gguf: accept the spaces that llama.cpp adds where the tokenizer does not."
        ),
    ] = False,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Write a bundle in a format of other programs, or as a page with which a browser runs it (web).

    The output is written completely or not at all.
    """
    from edgedec.bundle.atomic import check_room
    from edgedec.bundle.bundle import Bundle

    if format not in FORMATS:
        raise UsageError(must_be_one_of("--format", format, FORMATS))
    if model_draft is not None and format != "onnx":
        raise UsageError("--model-draft is for --format onnx, whose configuration names a draft; leave it out")
    if (ctx_size or kv_bits is not None) and format != "web":
        raise UsageError(f"--ctx-size and --kv-bits are for --format web; a {format} file leaves them to its reader")
    if trits != "auto" and format != "gguf":
        raise UsageError("--trits is for --format gguf, which has several types of ternary matrices; leave it out")
    if type != "auto" and format != "gguf":
        raise UsageError("--type is for --format gguf; other formats have the types that they hold best; leave it out")
    if llama_cpp_spaces and format != "gguf":
        raise UsageError(
            "--llama-cpp-spaces is for --format gguf; other formats keep the tokenizer as it is; leave it out"
        )
    if format == "onnx":
        check_installed("onnx", extra="onnx", user="--format onnx")
    read_by = ""
    opened = Bundle.open(resolve_model(bundle))
    check_room(output, opened.weight_bytes // 2)  # no format stores weights in less
    draft = None if model_draft is None else Bundle.open(resolve_model(model_draft))
    with progress("exporting") as report:
        if format == "gguf":
            from edgedec.quantize.exporters.gguf.export import export_gguf, readers

            counts = export_gguf(
                opened,
                output,
                matrix_type=type.lower(),
                trit_type=trits,
                their_spaces=llama_cpp_spaces,
                progress=report,
            )
            read_by = readers(counts)
        elif format == "onnx":
            from edgedec.quantize.exporters.onnx import export_onnx

            counts = export_onnx(opened, output, draft=draft, progress=report)
        elif format == "web":
            from edgedec.runtime.web.export import export_web

            counts = export_web(
                opened,
                output,
                name=Path(bundle).name.removesuffix(".edgedec") or "model",
                ctx_size=ctx_size,
                kv_bits=kv_bits,
                progress=report,
            )
        else:
            from edgedec.quantize.exporters.safetensors import export_safetensors

            counts = export_safetensors(opened, output, progress=report)
    files = [output] if output.is_file() else sorted(file for file in output.rglob("*") if file.is_file())
    result = {
        "output": str(output),
        "format": format,
        "bytes": sum(file.stat().st_size for file in files),
        "files": [file.name if file == output else file.relative_to(output).as_posix() for file in files],
        "tensors": counts,
        "read_by": read_by or None,
    }
    if json:
        print_json(result)
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    from edgedec.memory.byte_sizes import format_bytes

    kinds = ", ".join(f"{count} {kind}" for kind, count in result["tensors"].items())
    read_by = result["read_by"] or ""
    print_table(
        [
            ("written", result["output"]),
            ("format", result["format"]),
            ("files", ", ".join(result["files"])),
            ("tensors", kinds),
            ("size", f"{format_bytes(result['bytes'])} ({result['bytes']:,} bytes)"),
            *([("read by", read_by)] if read_by else []),
        ]
    )
    if read_by.startswith("Q2_0"):
        note("for readers that do not know Q2_0: --trits F16 keeps all trits, and --type f16 makes every matrix F16")
