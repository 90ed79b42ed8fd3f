"""Measurements of a model: perplexity, multiple-choice accuracy and speed."""
