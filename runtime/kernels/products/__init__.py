"""Products of activations and matrices of weights, and the layouts of those matrices."""
