"""These modules read tokenizers; each becomes a Hugging Face ``tokenizer.json``."""
