"""Sessions: an opened model, its answers and conversations."""
