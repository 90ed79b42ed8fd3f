"""A model of a board's DDR memory: functional and in time. docs/ddr-model.md says what it reproduces."""
