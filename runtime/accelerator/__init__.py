"""The driver of an accelerator: the same one for the board, its simulation and the interpreter."""
