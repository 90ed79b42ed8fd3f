"""The control path fetches a program, checks its instructions and issues them to the units."""
