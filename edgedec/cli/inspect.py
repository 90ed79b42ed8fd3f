"""``edgedec inspect``: what a bundle holds. Opening it checks every file against its hash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli.console import print_json, print_table
from edgedec.cli.options import Json, Verbose, option, resolve_model

if TYPE_CHECKING:
    from edgedec.bundle import Bundle
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
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Folder of a bundle, or 'demo'.")],
    render_chat: Annotated[
        bool, option("--render-chat", help="Print an example conversation as the bundle's template writes it.")
    ] = False,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Check a bundle and show what it is."""
    from edgedec.bundle import Bundle

    opened = Bundle.open(resolve_model(bundle))
    rendered = _render(opened) if render_chat else None
    if json:
        print_json(_describe(opened) | ({} if rendered is None else {"rendered_chat": rendered}))
    elif rendered is not None:
        print(rendered, end="" if rendered.endswith("\n") else "\n")
    else:
        _print(_describe(opened))


def _render(bundle: Bundle) -> str:
    from edgedec.runtime.chat_template import render
    from edgedec.runtime.tokenizer import Tokenizer

    tokenizer, tokens = Tokenizer.load(bundle.tokenizer_file), bundle.tokens
    return render(
        bundle.chat_template,
        _EXAMPLE,
        bos_token=None if tokens.bos is None else tokenizer.token_of(tokens.bos),
        eos_token=tokenizer.token_of(tokens.eos[0]) if tokens.eos else None,
        add_generation_prompt=True,
    )


def _describe(bundle: Bundle) -> dict[str, Any]:
    manifest = json.loads((bundle.path / "manifest.json").read_bytes())
    schemes: dict[Scheme, dict[str, Any]] = {}
    for tensor in bundle.tensors.values():
        scheme = tensor.scheme
        empty = {"kind": scheme.kind, **asdict(scheme), "tensors": 0, "weights": 0, "bytes": 0}
        entry = schemes.setdefault(scheme, empty)
        entry["tensors"] += 1
        entry["weights"] += tensor.count
        entry["bytes"] += tensor.nbytes
    stored = sum(tensor.nbytes for tensor in bundle.tensors.values())
    parameters = sum(tensor.count for tensor in bundle.tensors.values())
    return {
        "path": str(bundle.path),
        "created_by": manifest["created_by"],
        "sha256": bundle.sha256,
        "family": bundle.config.get("model_type"),
        "config": dict(bundle.config),
        "context": bundle.config.get("max_position_embeddings"),
        "quantization": dict(bundle.quantization),
        "parameters": parameters,
        "weight_bytes": stored,
        "bits_per_weight": round(8 * stored / parameters, 4) if parameters else 0.0,
        "schemes": list(schemes.values()),
        "tokens": {"size": bundle.tokens.size, "bos": bundle.tokens.bos, "eos": list(bundle.tokens.eos)},
        "chat_template": bundle.chat_template is not None,
        "files": manifest["files"],
    }


def _name(entry: Mapping[str, Any]) -> str:
    """A scheme in words: "ternary, planes 2, group_size 64"."""
    details = [f"{key} {value}" for key, value in entry.items() if key not in ("kind", "tensors", "weights", "bytes")]
    return ", ".join([str(entry["kind"]), *details])


def _method(quantization: Mapping[str, Any]) -> str:
    """What the manifest says about it, in words: "ternary, planes 2, group size 64". Any bundle's writer may add keys."""
    left_out = ("method", "parameters", "bits_per_weight")  # the two figures have rows of their own
    details = [
        f"{key.replace('_', ' ')} {value}" for key, value in quantization.items() if key not in left_out and value
    ]
    return ", ".join([str(quantization.get("method", "unknown")), *details])


def _print(data: dict[str, Any]) -> None:
    from edgedec.memory import format_bytes

    tokens = data["tokens"]
    print_table(
        [
            ("bundle", data["path"]),
            ("made by", data["created_by"]),
            ("sha256", data["sha256"]),
            ("family", str(data["family"])),
            *((name, str(data["config"][name])) for name in _SHOWN if name in data["config"]),
            ("context", f"{data['context']} tokens"),
            ("method", _method(data["quantization"])),
            ("parameters", f"{data['parameters']:,}"),
            ("weights", f"{format_bytes(data['weight_bytes'])}, {data['bits_per_weight']:.2f} bits per weight"),
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
