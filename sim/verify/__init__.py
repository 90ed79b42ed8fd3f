"""Verification with benches, with bounded proofs, and with whole tokens that are compared with the integer reference."""
