"""Find which key/value heads of a bundle's model need the rows of the whole context."""
