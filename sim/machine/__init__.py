"""Parts of simulated devices: a clocked machine, its memory and its registers."""
