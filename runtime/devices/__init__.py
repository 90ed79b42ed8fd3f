"""Devices with accelerators on boards, and the replay of their sessions. A file's name is the value of ``--device``."""
