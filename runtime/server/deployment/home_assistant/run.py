"""Start the server of the add-on: read the options, give up the rights of root, and become ``edgedec serve``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["VARIABLES", "main", "variables"]

OPTIONS = Path("/data/options.json")
USER = 10001  # number of the user and of its group in the image
# option of the add-on -> variable of the command line
VARIABLES = {
    "model": "EDGEDEC_SERVE_MODEL",
    "api_key": "EDGEDEC_SERVE_API_KEY",
    "memory_budget": "EDGEDEC_SERVE_MEMORY_BUDGET",
    "ctx_size": "EDGEDEC_SERVE_CTX_SIZE",
}


def variables(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of the server for the options of the add-on; an option without a value has none.

    Raises:
        ValueError: an option is not known, or its value is neither a text nor a number.
    """
    found = {}
    for name, value in options.items():
        if name not in VARIABLES:
            raise ValueError(f"the option {name} is not known; known are {', '.join(VARIABLES)}")
        if value is None or value == "":
            continue
        if not isinstance(value, str | int) or isinstance(value, bool) or "\0" in str(value):
            raise ValueError(f"the option {name} must be a text or a number")  # the value may be a key
        found[VARIABLES[name]] = str(value)
    return found


def main() -> NoReturn:
    """Replace this process by the server, as another user than root."""
    try:
        options = json.loads(OPTIONS.read_bytes())
        if not isinstance(options, dict):
            raise ValueError("it must be an object")
        found = variables(options)
    except (OSError, ValueError) as error:
        sys.exit(f"edgedec: {OPTIONS}: {error}")
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "edgedec"
    cache.mkdir(mode=0o700, exist_ok=True)
    os.chown(cache, USER, USER)
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    edgedec = str(Path(sys.executable).with_name("edgedec"))
    os.execve(edgedec, [edgedec, "serve"], os.environ | found)


if __name__ == "__main__":
    main()
