"""The parts of the host link's device side: frames in, commands, frames out."""
