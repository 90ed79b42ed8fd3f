"""A model of a board's DDR memory, with its contents and its timing. docs/ddr-model.md lists what it reproduces."""
