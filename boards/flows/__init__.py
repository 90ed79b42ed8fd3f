"""A build flow turns a board and a program into a project, a bitstream and a report."""
