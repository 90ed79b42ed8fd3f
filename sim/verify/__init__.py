"""Verification runs benches, bounded proofs, and whole tokens that are compared with the integer reference."""
