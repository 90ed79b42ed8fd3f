"""Run onnxruntime-genai with its own speculation, in a separate environment, on the padded model and the embedded draft."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import genai_model
from benchmarks.peers.text_writer import Peer, PeerWriter
from edgedec.bundle.bundle import Bundle
from edgedec.errors import ToolError
from edgedec.host.ort import onnxruntime as ort
from edgedec.host.paths import cache_folder
from edgedec.progress import Progress, silent

__all__ = ["open_genai"]

# Exact version, because figures name the onnxruntime-genai that was measured. Its engine is the ONNX Runtime of edgedec.
PACKAGE, RELEASE = "onnxruntime-genai", "0.18.0"
REVISION = 1  # revision of the models that genai_model.py writes; part of the names of their folders
MATCH = 3  # tokens of an n-gram, which its documentation recommends to begin with
MOST = 16  # genai's limit on the proposals of a round
_INSTEAD = "or measure without peers: --no-peer"


def _run(command: list[str], what: str) -> None:
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        lines = [line for line in (process.stderr or process.stdout).strip().splitlines() if line.strip()]
        raise ToolError(
            f"{what} failed: {lines[-1] if lines else 'it said nothing'}; check the package index, {_INSTEAD}"
        )


def _python(progress: Progress) -> Path:
    """Return the Python of an environment with onnxruntime-genai, made on first use (200 MB, half a minute)."""
    folder = cache_folder() / "peers" / f"{PACKAGE}-{RELEASE}-ort-{ort.__version__}"
    python, stamp = folder / "bin" / "python", folder / "finished"
    if not stamp.exists():
        progress(f"{PACKAGE}, once", 0, 1)
        folder.parent.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)], f"the environment of {PACKAGE}")
        packages = [f"{PACKAGE}=={RELEASE}", f"onnxruntime=={ort.__version__}"]
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*command, "--only-binary", ":all:", *packages], f"the installation of {PACKAGE} {RELEASE}")
        stamp.touch()
    return python


def _model_of(bundle: Bundle, progress: Progress) -> Path:
    folder = cache_folder() / "benchmarks" / f"{bundle.sha256[:12]}.v{REVISION}.genai"
    if not folder.exists():
        genai_model.write_model(bundle, folder, progress)
    return folder


def _drafters(draft_max: int) -> dict[str, str]:
    """Return the drafters by name, as commands of the writer: with documented or default settings, and with others."""
    most = min(draft_max, MOST)
    return {
        "n-gram, as documented": f"plain ngram_size={MATCH}",
        f"n-gram, chained, {most}": f"plain ngram_size={MATCH},max_draft_tokens={most},ngram_chained_lookup=true",
        "draft model, as delivered": "draft max_draft_tokens=4",
        f"draft model, {most}": f"draft max_draft_tokens={most}",
        "draft model, adaptive": "draft min_adaptive_k=2",
    }


def open_genai(
    target: Bundle, draft: Bundle, *, threads: int, draft_max: int, positions: int, progress: Progress = silent
) -> Peer:
    """Install the package, convert the models if necessary, and load them. The caller must close the peer's writer.

    Raises:
        ToolError: onnxruntime-genai cannot be installed.
        UnsupportedError: a model cannot be written for it.
        DeviceError: it cannot load one.
    """
    python = _python(progress)
    models = {"target": _model_of(target, progress), "draft": _model_of(draft, progress)}
    decoder, drafter = (
        genai_model.decoder_config(bundle, name, threads) for name, bundle in (("target", target), ("draft", draft))
    )
    with tempfile.TemporaryDirectory() as scratch:
        folders = {"plain": Path(scratch) / "plain", "draft": Path(scratch) / "draft"}
        for name, folder in folders.items():
            genai_model.write_config(folder, decoder, drafter if name == "draft" else None, target, positions)
            for model, path in models.items():  # a configuration may only name files below its own folder
                (folder / model).symlink_to(path, target_is_directory=True)
        script = Path(__file__).with_name("genai_writer.py")
        command = [str(python), "-I", str(script), *(f"{name}={folder}" for name, folder in folders.items())]
        writer = PeerWriter(PACKAGE, command)
    (release,) = writer.about
    about = {
        "version": f"{PACKAGE} {release}, ONNX Runtime {ort.__version__}",
        "model": "MatMulNBits, trits in 2 bits, head in 8",
        "weight_bytes": genai_model.weight_bytes(models["target"]),
    }
    return Peer(writer=writer, plain="plain -", drafters=_drafters(draft_max), details=about)
