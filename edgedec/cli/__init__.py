"""The command line, a thin layer over the Python API. docs/command-line.md is its reference."""
