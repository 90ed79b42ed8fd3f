"""Layout of the output buffer, which the hardware writes and the host reads."""

__all__ = ["RESULT_BYTES", "ROWS_OFFSET"]

RESULT_BYTES = 8  # bytes of one slot's result: a scale, or a logit and its id
ROWS_OFFSET = 4096  # bytes from the start of the buffer to the rows of logits
