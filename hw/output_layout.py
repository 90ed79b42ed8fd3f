"""Where results lie in the output buffer: what the head writes, and what the host reads."""

__all__ = ["RESULT_BYTES", "ROWS_OFFSET"]

RESULT_BYTES = 8  # of a slot: a scale, or a logit and its id
ROWS_OFFSET = 4096  # bytes from the results to the rows
