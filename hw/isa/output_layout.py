"""Layout of the output buffer, which the hardware writes and the host reads."""

__all__ = ["RESULT_BYTES", "ROWS_OFFSET", "TAP_PAGE_BYTES"]

RESULT_BYTES = 8  # bytes of one slot's result: a scale, a logit and its id, or the root of a tapped norm
ROWS_OFFSET = 4096  # bytes from the start of the buffer to the rows of logits
TAP_PAGE_BYTES = 4096  # bytes of a page, at whose start tapped values begin; AXI: a burst must not cross this boundary
