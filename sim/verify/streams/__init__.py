"""Random streams of instructions: legal ones give the interpreter's integers in RTL, illegal ones end with a named cause."""
