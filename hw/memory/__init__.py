"""These components sit at the memory bus: AXI, reads in bursts, writes, and the key/value cache."""
