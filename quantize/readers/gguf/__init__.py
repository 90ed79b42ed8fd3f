"""These modules read GGUF checkpoints."""
