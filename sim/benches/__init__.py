"""cocotb tests, run by ``edgedec.sim.cocotb_runner`` over a component."""
