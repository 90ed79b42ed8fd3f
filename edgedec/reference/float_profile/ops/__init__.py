"""One file per operation kind: ``run(operation, inputs, pass_) -> outputs``."""
