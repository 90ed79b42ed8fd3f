"""The path of the language-model head reduces logits to the likeliest tokens, or writes whole rows of them."""
