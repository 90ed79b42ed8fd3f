// Attention without vectors: one float after another.
#include "attention/attention_scalar.hpp"

EDGEDEC_DEFINE_ATTENTION(scalar, Scalar)
EDGEDEC_DEFINE_ROWS(scalar, Scalar)
