"""These modules measure a model: perplexity, multiple-choice accuracy and speed."""
