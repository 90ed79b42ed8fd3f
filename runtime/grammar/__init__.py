"""Structured output: grammars that a text must follow, and the masks that enforce them."""
