"""Each file here is a family of devices: ``FLOWS`` names its build flows, files of flows/tools/, the default first."""
