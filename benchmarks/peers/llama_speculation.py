"""Run llama.cpp with its own speculation on the padded model and the embedded draft."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers import gguf_models, llama_cpp
from benchmarks.peers.text_writer import Peer, PeerWriter
from benchmarks.support.compile import compile_cached
from edgedec.bundle.bundle import Bundle
from edgedec.errors import ToolError
from edgedec.host.paths import cache_folder
from edgedec.progress import Progress, silent

__all__ = ["open_llama"]

REVISION = 1  # revision of the models that gguf_models.py writes; part of the names of their files
MATCH = 3  # tokens of an n-gram; llama.cpp's own 12 hardly ever finds one in a text of a hundred tokens
_LIBRARIES = ("llama-common", "llama", "ggml", "ggml-cpu", "ggml-base")
_INCLUDES = ("include", "ggml/include", "common", "vendor")


def _gguf_of(bundle: Bundle, vocab: int, progress: Progress) -> Path:
    path = cache_folder() / "benchmarks" / f"{bundle.sha256[:12]}-{vocab}.v{REVISION}.gguf"
    if not path.exists():
        gguf_models.write_llama(bundle, path, vocab=vocab, progress=progress)
    return path


def _driver(llama: llama_cpp.LlamaCpp) -> Path:
    if not list(llama.binaries.glob("libllama-common.*")):
        raise ToolError(f"{llama.binaries} has no libllama-common; remove {llama.binaries.parent} to build it again")
    options = [f"-I{llama.source / part}" for part in _INCLUDES]
    options += [f"-L{llama.binaries}", f"-Wl,-rpath,{llama.binaries}", *(f"-l{name}" for name in _LIBRARIES)]
    return compile_cached(Path(__file__).with_name("llama_speculation.cpp"), options)


def _drafters(draft_max: int) -> dict[str, str]:
    """Return the drafters by name, as commands of the driver: with default settings, and with settings for short texts."""
    return {
        "ngram-simple, as delivered": "ngram-simple 0 0",
        f"ngram-simple, {MATCH} to {draft_max}": f"ngram-simple {MATCH} {draft_max}",
        "ngram-cache": "ngram-cache 0 0",
        "draft model, as delivered": "draft-simple 0 0",
        f"draft model, {draft_max}": f"draft-simple 0 {draft_max}",
    }


def open_llama(
    target: Bundle, draft: Bundle, *, threads: int, draft_max: int, positions: int, progress: Progress = silent
) -> Peer:
    """Build llama.cpp, convert the models if necessary, and load them. The caller must close the peer's writer.

    The draft has as many rows as the target, because llama.cpp refuses another vocabulary, and runs on as many threads.

    Raises:
        ToolError: llama.cpp or the driver cannot be built.
        UnsupportedError: a model cannot be a GGUF.
        DeviceError: llama.cpp cannot load one.
    """
    llama = llama_cpp.prepare(progress)
    vocab = target.config["vocab_size"]
    files = [str(_gguf_of(bundle, vocab, progress)) for bundle in (target, draft)]
    eos = target.tokens.eos[0] if target.tokens.eos else -1
    numbers = (threads, threads, positions, target.tokens.size, eos)
    writer = PeerWriter("llama.cpp", [str(_driver(llama)), *files, *(str(number) for number in numbers)])
    nbytes, model, release, system = writer.about
    about = {"version": f"{release}, {llama.version}", "model": model, "weight_bytes": int(nbytes), "system": system}
    return Peer(writer=writer, plain="none 0 0", drafters=_drafters(draft_max), details=about)
