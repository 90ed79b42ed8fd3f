"""Read GGUF checkpoints."""
