"""Train drafts of several sizes for the first embedded model by one recipe, and measure their acceptance.

    nice .venv/bin/python -m benchmarks.speculation.draft_law --drafts build/drafts [-o edgedec/demo/drafts.json]

The first embedded pair is in tests/data/first_pair. Its draft saw two million tokens, which a processor trains in minutes,
so that drafts of other sizes can be trained as long as it; the present draft saw 80 times as many. Each draft is trained by
``edgedec distil`` from text that the target writes, with as many tokens as the pair's own draft saw (10 minutes each on an
idle core; they need ``pip install -e '.[train]'``), and quantized to int8. A draft whose bundle is in the folder already is
not trained again. The pair's own draft is the fifth. The acceptance is that of
``runtime/measure/acceptance.py`` on the held-out stories, at temperature 0.8 with the other sampling options at their
defaults. The output is what ``edgedec plan --advise-draft`` fits its law to.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from edgedec import demo
from edgedec.api import quantize_checkpoint
from edgedec.bundle.atomic import new_file
from edgedec.bundle.bundle import Bundle
from edgedec.runtime.measure.acceptance import MOST_TOKENS, PAST, measure_acceptance, read_texts
from edgedec.runtime.planning.draft_advice import parameter_count
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.text.tokenizer import Tokenizer

__all__ = ["RECIPE", "SHAPES", "TEMPERATURE", "measure", "shape_options"]

TEMPERATURE = 0.8
FIRST_PAIR = Path(__file__).resolve().parents[2] / "tests" / "data" / "first_pair"
SHAPES = ((32, 88, 1), (56, 152, 1), (160, 432, 2), (256, 688, 3))  # hidden size, intermediate size, heads
RECIPE = (
    "--method float --init random --layers 2 --steps 500 --learning-rate 0.002 --text-weight 0.1 --logits-weight 0.9 "
    "--hidden-weight 0 --precision bfloat16 -t 1"
)


def shape_options(shape: tuple[int, int, int]) -> list[str]:
    """Return the options of ``edgedec distil`` for a shape."""
    hidden, intermediate, heads = map(str, shape)
    return ["--hidden-size", hidden, "--intermediate-size", intermediate, "--heads", heads]


def _train(folder: Path, shape: tuple[int, int, int]) -> Path:
    """Return the bundle of a draft, which is trained if it does not exist yet."""
    checkpoint, bundle = folder / f"h{shape[0]}", folder / f"h{shape[0]}.edgedec"
    if not bundle.exists():
        edgedec = [sys.executable, "-m", "edgedec"]
        options = [*shape_options(shape), *RECIPE.split()]
        subprocess.run([*edgedec, "distil", str(FIRST_PAIR / "target"), "-o", str(checkpoint), *options], check=True)
        subprocess.run([*edgedec, "quantize", str(checkpoint), "-o", str(bundle), "--method", "int8"], check=True)
    return bundle


def first_bundle(name: str, folder: Path) -> Bundle:
    """Return the bundle of the first pair's ``target`` or ``draft``, which is made in ``folder`` if it is not there."""
    path = folder / f"first-{name}.edgedec"
    if not path.exists():
        quantize_checkpoint(FIRST_PAIR / name, path, method={"target": "ternary", "draft": "int8"}[name])
    return Bundle.open(path)


def measure(target: Bundle, bundles: list[tuple[str, Bundle]]) -> dict[str, object]:
    """Return the measurements of drafts of ``target``, (name, bundle) each, as values that JSON can represent."""
    encode = Tokenizer.load(target.tokenizer_file).encode
    texts = read_texts((FIRST_PAIR / "held_out.txt").read_text("utf-8").splitlines(), encode)
    sampling = SamplingConfig(temperature=TEMPERATURE, seed=0)
    table = measure_acceptance(target, [bundle for _, bundle in bundles], texts, sampling)
    return {
        "model": "the first embedded pair",
        "model_parameters": parameter_count(target),
        "text": f"held_out.txt, each line from its token {PAST} on, at most {MOST_TOKENS}",
        "positions": table.positions,
        "temperature": TEMPERATURE,
        "sampling": {name: getattr(sampling, name) for name in ("top_k", "top_p", "min_p")},
        "command": "python -m benchmarks.speculation.draft_law --drafts build/drafts",
        "recipe": f"edgedec distil tests/data/first_pair/target {RECIPE}",
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


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafts", type=Path, required=True, metavar="FOLDER", help="folder of the trained drafts")
    parser.add_argument("-o", "--output", type=Path, default=demo.DRAFTS, metavar="FILE", help="file to write")
    options = parser.parse_args()
    options.drafts.mkdir(parents=True, exist_ok=True)
    bundles = [(f"h{shape[0]}", Bundle.open(_train(options.drafts, shape))) for shape in SHAPES]
    bundles.append(("first draft", first_bundle("draft", options.drafts)))
    bundles.sort(key=lambda pair: parameter_count(pair[1]))
    text = json.dumps(measure(first_bundle("target", options.drafts), bundles), indent=2) + "\n"
    with new_file(options.output) as partial:
        partial.write_text(text, "utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
