"""``edgedec inspect``: show the contents of a bundle or a compiled program, and check every file against its hash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli._origins import flags_used
from edgedec.cli.console import print_json, print_table
from edgedec.cli.options import Json, Verbose, option, resolve_model
from edgedec.errors import ToolError, UsageError
from edgedec.host.install_hint import install_extra

if TYPE_CHECKING:
    from edgedec.bundle.bundle import Bundle
    from edgedec.hw.compiler.program import Program
    from edgedec.schemes import Scheme

__all__ = ["inspect"]

_EXAMPLE = (
    {"role": "user", "content": "Hello!"},
    {"role": "assistant", "content": "Hello! How can I help you?"},
    {"role": "user", "content": "Tell me a story."},
)
_SHOWN = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)


def inspect(
    ctx: typer.Context,
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Folder of the bundle, or 'demo'.")] = "",
    render_chat: Annotated[
        bool, option("--render-chat", help="Print an example conversation in the form of the bundle's chat template.")
    ] = False,
    program: Annotated[
        str, option("--program", metavar="FOLDER", help="Show a program of the accelerator instead of a bundle.")
    ] = "",
    instructions: Annotated[
        int, option("--instructions", min=0, metavar="N", help="Number of instructions of the program to show; 0: all.")
    ] = 40,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Check a bundle or a program of the accelerator, and show its contents."""
    from edgedec.bundle.bundle import Bundle

    if bool(bundle) == bool(program) or (program and render_chat):
        raise UsageError("name a BUNDLE, or a program by --program alone")
    if bundle and flags_used(ctx, "instructions"):
        raise UsageError("--instructions is for --program; leave it out")
    if program:
        opened_program = _open_program(Path(program))
        if json:
            print_json(_describe_program(opened_program, program, instructions))
        else:
            _print_program(opened_program, program, instructions)
        return
    opened = Bundle.open(resolve_model(bundle), verify=True, borrows=True)
    rendered = _render(opened) if render_chat else None
    if json:
        print_json(_describe(opened) | ({} if rendered is None else {"rendered_chat": rendered}))
    elif rendered is not None:
        print(rendered, end="" if rendered.endswith("\n") else "\n")
    else:
        _print(_describe(opened))


def _open_program(path: Path) -> Program:
    """Open a compiled program.

    Raises:
        ToolError: Amaranth is not installed.
    """
    try:
        from edgedec.hw.compiler.program_file import load_program
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "amaranth":
            raise
        raise ToolError(f"programs of the accelerator need Amaranth; run: {install_extra('hdl')}") from error
    return load_program(path)


def _describe_program(program: Program, path: str, count: int) -> dict[str, Any]:
    from edgedec.hw.compiler.disassembler import describe

    total = len(program.instructions)
    return {
        "path": path,
        "sha256": program.sha256,
        "bundle": program.host.bundle,
        "config": asdict(program.config),
        "host": asdict(program.host),
        "image_bytes": program.image.size,
        "input_bytes": program.input_bytes,
        "cache_bytes": program.cache_bytes,
        "output_bytes": program.output_bytes,
        "read_bytes": program.bytes_by_destination(),
        "instructions": total,
        "commit": program.commit,
        "listing": [describe(program, index) for index in range(min(count or total, total))],
    }


def _print_program(program: Program, path: str, count: int) -> None:
    from edgedec.hw.compiler.disassembler import lines
    from edgedec.memory.byte_sizes import format_bytes

    config, total = program.config, len(program.instructions)
    print_table(
        [
            ("program", path),
            ("sha256", program.sha256),
            ("bundle", program.host.bundle or "unknown"),
            ("accelerator", f"{config.beat_bytes} bytes x {config.ports} ports, {config.slots} slots"),
            ("context", f"{config.context} tokens"),
            ("instructions", f"{total} of {config.instructions}; a commit begins at {program.commit}"),
            ("image", format_bytes(program.image.size)),
            ("input", format_bytes(program.input_bytes)),
            ("keys and values", format_bytes(program.cache_bytes)),
            ("output", format_bytes(program.output_bytes)),
            *([("taps", ", ".join(tap.name for tap in program.host.taps))] if program.host.taps else []),
        ]
    )
    print()
    sizes = sorted(program.bytes_by_destination().items(), key=lambda entry: -entry[1])
    print_table([("a pass reads", "bytes"), *((name, f"{size:,}") for name, size in sizes)], right=(1,))
    print()
    for line in lines(program, 0, count or None):
        print(line)
    if 0 < count < total:
        print(f"... and {total - count} more; --instructions 0 shows all")


def _render(bundle: Bundle) -> str:
    from edgedec.runtime.text.chat_template import render
    from edgedec.runtime.text.tokenizer import Tokenizer

    tokenizer, tokens = Tokenizer.load(bundle.tokenizer_file), bundle.tokens
    return render(
        bundle.chat_template,
        _EXAMPLE,
        bos_token=None if tokens.bos is None else tokenizer.token_of(tokens.bos),
        eos_token=tokenizer.token_of(tokens.eos[0]) if tokens.eos else None,
        add_generation_prompt=True,
    )


def _describe(bundle: Bundle) -> dict[str, Any]:
    from edgedec.kv.policy import KV_POLICY
    from edgedec.schemes import scheme_to_json

    manifest = json.loads((bundle.path / "manifest.json").read_bytes())
    schemes: dict[Scheme, dict[str, Any]] = {}
    for tensor in bundle.tensors.values():
        scheme = tensor.scheme
        empty = {**scheme_to_json(scheme), "tensors": 0, "weights": 0, "bytes": 0}
        entry = schemes.setdefault(scheme, empty)
        entry["tensors"] += 1
        entry["weights"] += tensor.count
        entry["bytes"] += tensor.nbytes
    return {
        "path": str(bundle.path),
        "created_by": manifest["created_by"],
        "sha256": bundle.sha256,
        "requires": sorted(bundle.manifest.requires),
        "family": bundle.config.get("model_type"),
        "config": dict(bundle.config),
        "context": bundle.config.get("max_position_embeddings"),
        "kv_policy": bundle.config.get(KV_POLICY),
        "quantization": dict(bundle.quantization),
        "parameters": bundle.parameters,
        "weight_bytes": bundle.weight_bytes,
        "bits_per_weight": round(bundle.bits_per_weight, 4),
        "schemes": list(schemes.values()),
        "borrows": None if bundle.manifest.borrows is None else bundle.manifest.borrows.to_json(),
        "tokens": {"size": bundle.tokens.size, "bos": bundle.tokens.bos, "eos": list(bundle.tokens.eos)},
        "chat_template": bundle.chat_template is not None,
        "files": manifest["files"],
    }


def _name(entry: Mapping[str, Any]) -> str:
    """Return a scheme as text: "ternary, planes 2, group_size 64"."""
    details = [f"{key} {value}" for key, value in entry.items() if key not in ("kind", "tensors", "weights", "bytes")]
    return ", ".join([str(entry["kind"]), *details])


def _method(quantization: Mapping[str, Any]) -> str:
    """Return the manifest's quantization as text: "ternary, planes 2, group size 64". A bundle may have any keys."""
    left_out = ("method", "parameters", "bits_per_weight")  # the two figures have rows of their own
    details = [
        f"{key.replace('_', ' ')} {value}" for key, value in quantization.items() if key not in left_out and value
    ]
    return ", ".join([str(quantization.get("method", "unknown")), *details])


def _borrowed_lines(borrows: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return a row for the target, and one for each tensor that is the target's."""
    if borrows is None:
        return []
    target, tensors = borrows["target"], borrows["tensors"]
    names = [
        ("borrows", name if one["tensor"] == name else f"{name}, the target's {one['tensor']}")
        for name, one in tensors.items()
    ]
    return [("draft of", f"{target['name']}, sha256 {target['sha256']}"), *names]


def _print(data: dict[str, Any]) -> None:
    from edgedec.kv.policy import read_policy
    from edgedec.memory.byte_sizes import format_bytes

    tokens, policy = data["tokens"], read_policy(data["config"])
    print_table(
        [
            ("bundle", data["path"]),
            ("made by", data["created_by"]),
            ("sha256", data["sha256"]),
            *((("requires", ", ".join(data["requires"])),) if data["requires"] else ()),
            ("family", str(data["family"])),
            *((name, str(data["config"][name])) for name in _SHOWN if name in data["config"]),
            ("context", f"{data['context']} tokens"),
            ("method", _method(data["quantization"])),
            *(() if policy is None else policy.lines()),
            ("parameters", f"{data['parameters']:,}"),
            ("weights", f"{format_bytes(data['weight_bytes'])}, {data['bits_per_weight']:.2f} bits per weight"),
            *_borrowed_lines(data["borrows"]),
            ("tokens", f"{tokens['size']}, BOS {tokens['bos']}, EOS {', '.join(map(str, tokens['eos'])) or None}"),
            ("chat template", "yes" if data["chat_template"] else "no"),
        ]
    )
    print()
    rows = [
        (_name(entry), str(entry["tensors"]), f"{entry['weights']:,}", format_bytes(entry["bytes"]))
        for entry in data["schemes"]
    ]
    print_table([("scheme", "tensors", "weights", "size"), *rows], right=(1, 2, 3))
    print()
    files = [(name, format_bytes(entry["bytes"]), entry["sha256"]) for name, entry in data["files"].items()]
    print_table([("file", "size", "sha256"), *files], right=(1,))
