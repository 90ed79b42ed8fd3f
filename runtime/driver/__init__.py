"""The driver, which runs passes on an accelerator: on a board, in a simulation, or in the interpreter of its program."""
