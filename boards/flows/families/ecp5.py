"""ECP5: the open tools."""

FLOWS = ("nextpnr",)
