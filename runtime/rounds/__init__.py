"""Rounds of speculative decoding: the round itself, what is measured of it, and what decides whether guesses pay."""
