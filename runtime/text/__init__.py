"""These modules turn text into tokens and tokens into text: tokenizer, chat templates, streamed output."""
