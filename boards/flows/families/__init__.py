"""Each file here is a build flow: it is named for a family of devices and has the functions of ``Flow``."""
