"""A model of an SDR SDRAM chip, which checks its controller against the rules of the data sheet."""
