"""The sampling options as the library takes them."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_uint64, c_void_p

import numpy as np

from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler

__all__ = ["CompiledSampling"]

_NUMBERS = ("temperature", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty")
_MOST = (1 << 63) - 1


class CompiledSampling(ctypes.Structure):
    """``SamplingOptions`` of sampling.hpp.

    Parameters:
        sampler: the sampling options, and the number of the tokenizer's ids.
        random: the random numbers of the text.
    """

    _fields_ = (
        *((name, c_double) for name in _NUMBERS),
        *((name, c_int64) for name in ("top_k", "repeat_last_n", "vocab_limit", "biases")),
        ("bias_ids", c_void_p),
        ("bias_values", c_void_p),
        ("seed", c_uint64),
        ("sample", c_uint64),
    )

    def __init__(self, sampler: Sampler, random: PositionRandom) -> None:
        config = sampler.config
        # An id that no int32 holds is no token.
        biases = [(token, bias) for token, bias in config.logit_bias if token < 1 << 31]
        self._ids = np.array([token for token, _ in biases], np.int32)
        self._values = np.array([bias for _, bias in biases], np.float64)
        super().__init__(
            **{name: getattr(config, name) for name in _NUMBERS},
            top_k=min(config.top_k, _MOST),
            repeat_last_n=min(config.repeat_last_n, _MOST),
            vocab_limit=sampler.vocab_limit,
            biases=len(biases),
            bias_ids=self._ids.ctypes.data,
            bias_values=self._values.ctypes.data,
            seed=random.seed,
            sample=random.sample,
        )
