"""The float profile: int8 activations where a linear is quantized, exact integer sums, float32 elsewhere."""
