"""The graph of a model: operations, shapes, and passes over them."""
