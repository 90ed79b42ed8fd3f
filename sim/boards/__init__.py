"""These modules simulate boards: a Zynq as pynq sees it, and boards with a serial line."""
