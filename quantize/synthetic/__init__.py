"""Make bundles without a checkpoint: random weights of a given shape, and padded copies of bundles."""
