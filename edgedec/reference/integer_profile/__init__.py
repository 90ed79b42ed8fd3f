"""The integer profile: what the accelerator computes, integer for integer. docs/integer-profile.md is its one-page form."""
