"""This package defines what the RTL, the compiler, the driver and the board agree on; it imports no Amaranth."""
