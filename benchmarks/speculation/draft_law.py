"""Train drafts of several sizes for a model by one recipe, and measure their acceptance.

    nice .venv/bin/python -m benchmarks.speculation.draft_law --drafts build/drafts [TARGET] [-o FILE]
    .venv/bin/python -m benchmarks.speculation.draft_law --write-docs     # the table of docs/reports/speculation.md

Each draft is trained by ``edgedec distil`` from text that the target writes, two million tokens of it (10 minutes each on an
idle core; they need ``pip install -e '.[train]'``), and quantized to int8. A draft whose bundle is in the folder already is
not trained again. The acceptance is that of ``runtime/measure/acceptance.py`` on the paragraphs of --text, at temperature
0.8 with the other sampling options at their defaults. The output has the form of ``edgedec/demo/drafts.json``, which
``edgedec plan --advise-draft`` fits its law to. That file was measured with an earlier embedded pair, which the repository
no longer keeps; its third draft was that pair's own, trained on as many tokens of other text. --write-docs measures nothing:
it writes the page's table from that file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.support.docs_tables import markdown_table, write_blocks
from edgedec import demo
from edgedec.api import quantize_checkpoint
from edgedec.bundle.atomic import new_file
from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.runtime.measure.acceptance import MOST_TOKENS, PAST, measure_acceptance, read_texts
from edgedec.runtime.planning.draft_advice import parameter_count
from edgedec.runtime.planning.draft_law import MeasuredDraft, left_out
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.text.tokenizer import Tokenizer

__all__ = ["RECIPE", "SHAPES", "TEMPERATURE", "kept_table", "measure", "shape_options", "target_bundle"]

TEMPERATURE = 0.8
# hidden size, intermediate size, heads
SHAPES = ((32, 88, 1), (56, 152, 1), (96, 256, 1), (160, 432, 2), (256, 688, 3))
RECIPE = (
    "--method float --init random --layers 2 --steps 500 --learning-rate 0.002 --text-weight 0.1 --logits-weight 0.9 "
    "--hidden-weight 0 --precision bfloat16 -t 1"
)


def shape_options(shape: tuple[int, int, int]) -> list[str]:
    """Return the options of ``edgedec distil`` for a shape."""
    hidden, intermediate, heads = map(str, shape)
    return ["--hidden-size", hidden, "--intermediate-size", intermediate, "--heads", heads]


def _train(target: Path, folder: Path, shape: tuple[int, int, int]) -> Path:
    """Return the bundle of a draft, which is trained if it does not exist yet."""
    checkpoint, bundle = folder / f"h{shape[0]}", folder / f"h{shape[0]}.edgedec"
    if not bundle.exists():
        edgedec = [sys.executable, "-m", "edgedec"]
        options = [*shape_options(shape), *RECIPE.split()]
        subprocess.run([*edgedec, "distil", str(target), "-o", str(checkpoint), *options], check=True)
        subprocess.run([*edgedec, "quantize", str(checkpoint), "-o", str(bundle), "--method", "int8"], check=True)
    return bundle


def target_bundle(target: Path, folder: Path) -> Bundle:
    """Return the bundle of a ternary checkpoint, which is made in ``folder`` if it is not there."""
    path = folder / "target.edgedec"
    if not path.exists():
        quantize_checkpoint(target, path, method="ternary")
    return Bundle.open(path)


def _check_folder(folder: Path, target: Path) -> None:
    """Check that the drafts of a folder are those of a target, by the digest of its weights, and note it in a new folder.

    Raises:
        UsageError: they are another target's.
    """
    digest = hashlib.sha256((target / "model.safetensors").read_bytes()).hexdigest()
    note = folder / "target.sha256"
    if note.exists() or any(folder.iterdir()):
        if not note.exists() or note.read_text("utf-8").strip() != digest:
            raise UsageError(f"--drafts {folder}: its drafts are of another target than {target}; name another folder")
    else:
        note.write_text(digest + "\n", "utf-8")


def measure(name: str, target: Bundle, bundles: list[tuple[str, Bundle]], text: Path) -> dict[str, object]:
    """Return the measurements of drafts of ``target``, (name, bundle) each, as values that JSON can represent.

    Args:
        name: name of the target for the output.
        text: file whose paragraphs are measured.
    """
    encode = Tokenizer.load(target.tokenizer_file).encode
    texts = read_texts(text.read_text("utf-8").splitlines(), encode)
    sampling = SamplingConfig(temperature=TEMPERATURE, seed=0)
    table = measure_acceptance(target, [bundle for _, bundle in bundles], texts, sampling)
    return {
        "model": name,
        "model_parameters": parameter_count(target),
        "text": f"{text.name}, each line from its token {PAST} on, at most {MOST_TOKENS}",
        "positions": table.positions,
        "temperature": TEMPERATURE,
        "sampling": {name: getattr(sampling, name) for name in ("top_k", "top_p", "min_p")},
        "command": f"python -m benchmarks.speculation.draft_law {name} --drafts FOLDER --text {text}",
        "recipe": f"edgedec distil TARGET {RECIPE}",
        "floor": asdict(table.floor),
        "ceiling": asdict(table.ceiling),
        "drafts": [
            {
                "name": name,
                "hidden_size": bundle.config["hidden_size"],
                "intermediate_size": bundle.config["intermediate_size"],
                "heads": bundle.config["num_attention_heads"],
                "layers": bundle.config["num_hidden_layers"],
                "parameters": parameter_count(bundle),
                **asdict(acceptance),
            }
            for (name, bundle), acceptance in zip(bundles, table.drafts, strict=True)
        ],
    }


def kept_table() -> str:
    """Return the table of the kept drafts: acceptance as measured, and as the law predicts it from the others."""
    data = json.loads(demo.DRAFTS.read_text("utf-8"))
    shares: dict[str, list[str]] = {}
    for kind in ("chosen", "drawn"):
        drafts = [
            MeasuredDraft(name=draft["name"], parameters=draft["parameters"], acceptance=draft[kind])
            for draft in data["drafts"]
        ]
        errors = left_out(drafts, floor=data["floor"][kind], ceiling=data["ceiling"][kind])
        for draft, error in zip(drafts, errors, strict=True):
            found = f"{draft.acceptance + error:.3f} ({error:+.3f})"
            shares.setdefault(draft.name, []).extend((f"{draft.acceptance:.3f}", found))
    sizes = {draft["name"]: (draft["hidden_size"], draft["parameters"]) for draft in data["drafts"]}
    rows = [(f"hidden {hidden}", f"{count:,}", *shares[name]) for name, (hidden, count) in sizes.items()]
    predicted = "predicted by the others"
    head = ("draft", "parameters", "accepted, chosen (`match`)", predicted, "drawn (`rejection`)", predicted)
    return markdown_table(head, rows)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "target", type=Path, nargs="?", default=demo.TARGET, help="ternary checkpoint; default: the embedded one"
    )
    parser.add_argument("--drafts", type=Path, metavar="FOLDER", help="folder of the trained drafts")
    parser.add_argument("--text", type=Path, default=demo.HELD_OUT, help="text that was trained on by none of them")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to write besides the standard output")
    parser.add_argument(
        "--write-docs", action="store_true", help="write the table of the kept drafts, and measure nothing"
    )
    options = parser.parse_args()
    if options.write_docs:
        write_blocks({"law drafts": kept_table()})
        return
    if options.drafts is None:
        parser.error("--drafts FOLDER is needed, in which the trained drafts are kept")
    options.drafts.mkdir(parents=True, exist_ok=True)
    try:
        _check_folder(options.drafts, options.target)
    except UsageError as error:
        parser.error(str(error))
    bundles = [(f"h{shape[0]}", Bundle.open(_train(options.target, options.drafts, shape))) for shape in SHAPES]
    target = target_bundle(options.target, options.drafts)
    text = json.dumps(measure(str(options.target), target, bundles, options.text), indent=2) + "\n"
    if options.output is not None:
        with new_file(options.output) as partial:
            partial.write_text(text, "utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
