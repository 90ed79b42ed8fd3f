"""A controller for the SDR SDRAM chips of small boards, which have a 16-bit bus of their own."""
