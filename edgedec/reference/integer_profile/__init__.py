"""The integer profile, which the accelerator computes exactly. docs/integer-profile.md describes it on one page."""
