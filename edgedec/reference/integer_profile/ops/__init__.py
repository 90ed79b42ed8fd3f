"""One file per operation kind: ``prepare(operation, site) -> constants``, ``run(operation, constants, inputs, context)``."""
