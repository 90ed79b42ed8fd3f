"""What surrounds the accelerator on a Zynq-7000 where no vendor's interconnect stands between it and the processor."""
