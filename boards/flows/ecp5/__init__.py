"""The flow for ECP5, fully open: yosys, nextpnr and ecppack."""
