"""The deployment of a board bundle: checks of the board, and the copy from a PC to it."""
