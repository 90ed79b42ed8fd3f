"""Drafters, one file each, named as ``--spec-type`` selects it. Each file has ``create() -> Drafter``."""
