"""These modules write components as text: RTLIL, and Verilog by means of yosys."""
