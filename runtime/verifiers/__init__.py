"""Verifiers, one file each. A verifier decides which nodes of a tree to accept.

Each file has ``create() -> Verifier``, and ``TRAITS``, which says what the verifier promises and which trees it needs.
"""
