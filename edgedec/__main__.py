"""``python -m edgedec`` is the command ``edgedec``."""

from __future__ import annotations

from edgedec.cli.app import main

if __name__ == "__main__":
    main()
