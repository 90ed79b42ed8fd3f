"""Decoders, one file each. A decoder continues prompts by running passes on a target.

A file is a decoder; those that begin with an underscore are parts. ``_plugin.py`` says what a file has.
"""

from __future__ import annotations

__all__ = ["DEFAULT"]

DEFAULT = "autoregressive"  # the decoder of a run that names none
