"""One file per operation kind: ``lower(operation, emitter)`` appends nodes and binds the operation's outputs."""
