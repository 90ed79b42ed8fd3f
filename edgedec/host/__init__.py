"""The machine that edgedec runs on: its folders, packages and messages."""
