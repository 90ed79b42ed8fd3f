"""Deployment copies a board bundle from a PC to a board and starts it there."""
