"""Conversion of text to tokens and of tokens to text: tokenizer, chat templates, and streamed output."""
