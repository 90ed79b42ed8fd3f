"""Verifiers, one file each. A verifier decides which nodes of a tree to accept. Each file has ``create() -> Verifier``."""
