"""Tree policies: one file each, named after the command-line name; ``create() -> TreePolicy``."""
