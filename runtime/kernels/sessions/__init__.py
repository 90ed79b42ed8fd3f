"""Sessions of a model on the operators of this package, and the check that the operators run here."""
