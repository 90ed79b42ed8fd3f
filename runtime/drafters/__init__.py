"""Drafters: one file each, named after the command-line name; ``create() -> Drafter``."""
