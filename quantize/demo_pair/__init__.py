"""Generate the training text of the embedded story models, train them, and examine their answers."""
