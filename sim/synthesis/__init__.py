"""These modules synthesize components with yosys, and compare the result with the estimates."""
