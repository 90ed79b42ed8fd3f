"""These modules write a bundle as a GGUF file."""
