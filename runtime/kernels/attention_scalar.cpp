// The obvious path: one float after the other.
#include "attention_scalar.hpp"

EDGEDEC_DEFINE_ATTENTION(scalar, Scalar)
