"""The command line: thin over the Python API. docs/command-line.md is its reference."""
