"""cocotb tests, run by ``edgedec.sim.verify.cocotb_runner`` over a component."""
