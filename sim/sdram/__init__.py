"""A model of an SDR SDRAM chip that holds whoever drives it to its data sheet."""
