"""Each file here is a build flow: its name is the name for ``--flow``, and it has the functions of ``Flow``."""
