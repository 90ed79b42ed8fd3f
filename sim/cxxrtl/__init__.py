"""Compiled simulations of an accelerator top and its memory, at hundreds of thousands of cycles per second."""
