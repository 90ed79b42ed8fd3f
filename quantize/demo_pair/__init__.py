"""These modules make the embedded story models: their world, their training data and their training."""
