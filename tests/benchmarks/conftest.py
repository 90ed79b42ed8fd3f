"""Let the tests of this folder import the benchmarks, which are no part of the installed package."""

from __future__ import annotations

import sys
from pathlib import Path

# The last place, so that nothing else is found there first.
sys.path.append(str(Path(__file__).resolve().parents[2]))
