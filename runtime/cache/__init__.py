"""The rows of keys and values: blocks, arenas and slots."""
