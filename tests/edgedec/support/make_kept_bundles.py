"""Make ``bundles/version_N``, N being the version of the format that this edgedec writes.

Run it once for each version: ``python -m tests.edgedec.support.make_kept_bundles``. It refuses to overwrite bundles
that are kept, because their worth is that an earlier edgedec wrote them.
"""

from __future__ import annotations

import json
import sys

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import VERSION
from tests.edgedec.support.reference_bundles import FOLDER, PROMPT, generate
from tests.support.make_tiny import write_bundle

KINDS = {
    "int8": "int8",
    "native_ternary": "native",
    "planes": "planes2",
}  # name of the bundle -> scheme of tests.support.make_tiny
# difference from a chosen logit to the next one, so that another order of float sums changes no token
LEAST_LEAD = 1e-3
SEEDS = 100


def main() -> None:
    """Write the bundles and the tokens that they generate."""
    folder = FOLDER / f"version_{VERSION}"
    if folder.exists():
        sys.exit(f"{folder}: exists already; bundles that are kept are never written again")
    tokens = {}
    for name, kind in KINDS.items():
        path = folder / f"{name}.edgedec"
        for seed in range(SEEDS):
            write_bundle(path, kind, seed=seed)
            text, lead = generate(Bundle.open(path))
            if lead >= LEAST_LEAD and len(set(text)) > 4:
                break
        else:
            sys.exit(f"{path}: no seed below {SEEDS} gives a text of clearly chosen, different tokens")
        tokens[name] = text
    (folder / "tokens.json").write_text(json.dumps({"prompt": PROMPT, "tokens": tokens}, indent=1) + "\n")


if __name__ == "__main__":
    main()
