"""The driver runs passes on an accelerator: the same code serves a board, a simulation and the interpreter."""
