"""Call llama.cpp as a library, the oracle for GGUF files, by ctypes; the package ``xllamacpp`` 2026.10 brings it.

The structures have the fields of that version's ``llama.h`` up to the last one used here; the bytes behind it are kept.
"""

from __future__ import annotations

import ctypes as c
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

__all__ = ["Model", "messages"]

_MORE = ("more", c.c_ubyte * 256)
_F32_CACHE = 0  # ggml's number of float32


class _ModelParams(c.Structure):
    _fields_ = [
        ("devices", c.c_void_p),
        ("overrides", c.c_void_p),
        ("numbers", c.c_int32 * 5),
        ("tensor_split", c.c_void_p),
        ("progress", c.c_void_p),
        ("progress_data", c.c_void_p),
        ("kv_overrides", c.c_void_p),
        ("vocab_only", c.c_bool),
        _MORE,
    ]


class _ContextParams(c.Structure):
    _fields_ = [
        ("n_ctx", c.c_uint32),
        ("n_batch", c.c_uint32),
        ("n_ubatch", c.c_uint32),
        ("sequences", c.c_uint32 * 4),
        ("n_threads", c.c_int32),
        ("n_threads_batch", c.c_int32),
        ("kinds", c.c_int32 * 5),
        ("rope", c.c_float * 6),
        ("yarn_orig_ctx", c.c_uint32),
        ("defrag", c.c_float),
        ("eval", c.c_void_p),
        ("eval_data", c.c_void_p),
        ("type_k", c.c_int32),
        ("type_v", c.c_int32),
        _MORE,
    ]


class _Batch(c.Structure):
    _fields_ = [("n", c.c_int32), ("token", c.POINTER(c.c_int32)), ("others", c.c_void_p * 5)]


_LOG = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
_WARNING = 3
_said: list[tuple[int, str]] = []


def _log(level: int, text: bytes, _: object) -> None:
    _said.append((level, text.decode(errors="replace")))


_KEEP = _LOG(_log)  # llama.cpp calls it as long as the program runs


@cache
def _library() -> c.CDLL:
    pytest.importorskip("xllamacpp")
    (path,) = Path(sys.prefix).glob("lib/python3*/site-packages/xllamacpp/xllamacpp*.so")
    library = c.CDLL(str(path))
    ids = c.POINTER(c.c_int32)
    for name, result, arguments in (
        ("llama_model_default_params", _ModelParams, ()),
        ("llama_context_default_params", _ContextParams, ()),
        ("llama_model_load_from_file", c.c_void_p, (c.c_char_p, _ModelParams)),
        ("llama_model_get_vocab", c.c_void_p, (c.c_void_p,)),
        ("llama_vocab_n_tokens", c.c_int32, (c.c_void_p,)),
        ("llama_vocab_is_eog", c.c_bool, (c.c_void_p, c.c_int32)),
        ("llama_vocab_bos", c.c_int32, (c.c_void_p,)),
        ("llama_tokenize", c.c_int32, (c.c_void_p, c.c_char_p, c.c_int32, ids, c.c_int32, c.c_bool, c.c_bool)),
        ("llama_init_from_model", c.c_void_p, (c.c_void_p, _ContextParams)),
        ("llama_batch_get_one", _Batch, (ids, c.c_int32)),
        ("llama_decode", c.c_int32, (c.c_void_p, _Batch)),
        ("llama_get_logits_ith", c.POINTER(c.c_float), (c.c_void_p, c.c_int32)),
        ("llama_free", None, (c.c_void_p,)),
        ("llama_log_set", None, (_LOG, c.c_void_p)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.llama_log_set(_KEEP, None)
    library.llama_backend_init()
    return library


def messages() -> str:
    """Return what llama.cpp has warned of since the last model was opened."""
    return "".join(text for level, text in _said if level >= _WARNING)


class Model:
    """A GGUF file that llama.cpp has opened."""

    def __init__(self, path: Path, *, vocab_only: bool = False) -> None:
        self._library = _library()
        _said.clear()
        params = self._library.llama_model_default_params()
        params.vocab_only = vocab_only
        self._model = self._library.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise ValueError(f"llama.cpp refuses {path.name}: {messages()[-600:]}")
        self._vocabulary = self._library.llama_model_get_vocab(self._model)
        self.tokens = self._library.llama_vocab_n_tokens(self._vocabulary)

    @property
    def bos(self) -> int:
        return int(self._library.llama_vocab_bos(self._vocabulary))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with the tokens that are added to it; control tokens in it are tokens."""
        data = text.encode()
        ids = (c.c_int32 * (2 * len(data) + 16))()
        count = self._library.llama_tokenize(self._vocabulary, data, len(data), ids, len(ids), True, True)
        return list(ids[:count])

    def ends(self) -> list[int]:
        """Return all ids that end a text."""
        return [at for at in range(self.tokens) if self._library.llama_vocab_is_eog(self._vocabulary, at)]

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits float32 [ids, tokens] behind each id, with keys and values in float32."""
        params = self._library.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = 1
        params.kinds[4] = 0  # no flash attention, which rounds to float16
        params.type_k = params.type_v = _F32_CACHE
        context = self._library.llama_init_from_model(self._model, params)
        rows = []
        for one in ids:
            assert self._library.llama_decode(context, self._library.llama_batch_get_one((c.c_int32 * 1)(one), 1)) == 0
            rows.append(np.ctypeslib.as_array(self._library.llama_get_logits_ith(context, -1), (self.tokens,)).copy())
        self._library.llama_free(context)
        return np.array(rows, np.float32)
