"""Read tokenizers of several formats and convert each to a Hugging Face ``tokenizer.json``."""
