"""The surroundings of the accelerator on a Zynq-7000, without a vendor's interconnect between it and the processor."""
