"""The generator for trees whose siblings are drawn independently of each other.

It is a module of its own, because a start that draws no children does without NumPy's generators.
"""

from __future__ import annotations

import numpy as np

__all__ = ["Independent"]


class Independent(np.random.Generator):
    """A generator that stands for drawing siblings independently of each other, so that a token may occur twice."""
