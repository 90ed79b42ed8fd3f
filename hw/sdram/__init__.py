"""A controller for SDR SDRAM: a chip with a 16-bit bus of its own, as small boards have it."""
