"""A model of a board's DDR memory, with its contents and its timing. docs/accelerator.md lists what it reproduces."""
