"""Write a bundle as a GGUF file."""
