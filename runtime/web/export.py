"""Export a bundle as a site: a folder of static files with which a browser runs the model by WebGPU (docs/web.md)."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer as Hf

from edgedec.bundle.atomic import check_folder, new_folder
from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import build_graph, context_size
from edgedec.graph.graph import check_no_features
from edgedec.onnx.kv_cache import blocks_of
from edgedec.progress import Progress, silent
from edgedec.runtime.gpu.kernels.cache import KV_CHOICES
from edgedec.runtime.gpu.layout import Sizes
from edgedec.runtime.gpu.lowering import bundle_layout
from edgedec.runtime.gpu.sized_program import constants, lower
from edgedec.runtime.text.chat_template import check_template
from edgedec.runtime.text.stream import TextStream
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.runtime.web.manifest import SITE, is_site
from edgedec.runtime.web.probes import known_answer, probes, spellings
from edgedec.runtime.web.site_writer import TOKENIZER, VARIANTS, SiteModel, write_site
from edgedec.same_tokens import TEXTS, added_texts, first_difference

__all__ = ["export_web"]

_CONTEXT = 2048  # tokens of context, if the model has more, as in a run without --ctx-size
_ROWS = 32  # rows of a pass over a prompt
_BINDING_BYTES = 128 << 20  # Source: WebGPU's default maxStorageBufferBindingSize, which every browser's GPU has


def export_web(
    bundle: Bundle,
    output: Path,
    *,
    name: str,
    ctx_size: int = 0,
    kv_bits: int | None = None,
    progress: Progress = silent,
) -> dict[str, int]:
    """Write a bundle as a site and return the numbers of its ``kernels``, ``dispatches`` and ``pieces`` of weights.

    The folder is written completely or not at all. It refers to nothing outside of it. The model is run on the CPU for a
    moment, so that a browser can compare its tokens.

    Args:
        bundle: the model.
        output: the folder; an existing one is replaced if it is a site, or empty.
        name: name of the model on the page.
        ctx_size: context in tokens; 0: the model's, at most 2048.
        kv_bits: bits of keys and values: 16, 8 or 32; None: 16, the default of the CPU target.
        progress: called while weights are packed.

    Raises:
        UsageError: the context or ``kv_bits`` is out of range, or ``output`` is something else.
        UnsupportedError: an operation has no GPU kernel, or the tokenizer's text cannot be followed token by token, or it
            is read back as another one.
        BundleError: the bundle lacks a tensor, or its chat template does not parse.
    """
    most = context_size(bundle.config)
    if not 0 <= ctx_size <= most or ctx_size == 1:
        raise UsageError(f"--ctx-size must be 2 to {most}, which is what the model has, not {ctx_size}")
    bits = KV_CHOICES[0] if kv_bits is None else kv_bits
    if bits not in KV_CHOICES:
        raise UsageError(f"--kv-bits must be 16, 8 or 32, not {kv_bits}")
    _check_output(output)
    positions = ctx_size or min(most, _CONTEXT)
    graph = build_graph(bundle.config)
    check_no_features(graph, "a site")
    bundle.check(graph)
    tokenizer, template = Tokenizer.load(bundle.tokenizer_file), bundle.chat_template
    TextStream(tokenizer)  # raises now what the page could not tell
    if template is not None:
        check_template(template)
    layout = bundle_layout(bundle, bits, binding_bytes=_BINDING_BYTES, embeds_only=False)
    blocks = blocks_of(positions)
    sizes = Sizes(rows=_ROWS, results=1, positions=positions, cache_blocks=blocks, table_blocks=blocks)
    programs = {variant: lower(layout, sizes, sums=False, **variant._asdict()) for variant in VARIANTS}
    model = SiteModel(
        name=name,
        bundle=bundle.sha256,
        tokens={"bos": bundle.tokens.bos, "eos": list(bundle.tokens.eos)},
        spellings=spellings(bundle, tokenizer),
        tokenizer=bundle.tokenizer_file.read_bytes(),
        chat_template=template,
        probes=probes(bundle, tokenizer),
        known_answer=known_answer(bundle, ctx_size=positions, kv_bits=bits),
        programs=programs,
        constants=constants(bundle, layout, sizes),
    )
    with new_folder(output, SITE) as new:
        pieces = write_site(new, model, progress)
        _check_tokenizer(bundle, new)
    program = programs[VARIANTS[0]]
    return {"kernels": len(program.kernels), "dispatches": len(program.steps), "pieces": len(pieces)}


def _check_tokenizer(bundle: Bundle, site: Path) -> None:
    """Raise UnsupportedError if the tokenizer in a site cuts texts otherwise than the bundle's. Browsers check again."""
    ours, other = (Hf.from_file(str(path)) for path in (bundle.tokenizer_file, site / TOKENIZER))
    difference = first_difference(ours, other, [*TEXTS, *added_texts(ours)])
    if difference is not None:
        raise UnsupportedError(f"{bundle.path}: its tokenizer would be another one in a site: {difference}")


def _check_output(output: Path) -> None:
    """Raise UsageError if a site cannot be written there, before the work that takes long.

    Other programs have files named ``site.json``, too, and the whole folder is replaced.
    """
    check_folder(output, SITE)
    if (output / SITE).exists() and not is_site(output):
        raise UsageError(
            f"cannot write {output}: its {SITE} is not that of a site of edgedec; choose another name or remove it"
        )
