"""These modules answer questions before an accelerator is built: its resources, the one that a board gets, its diagram."""
