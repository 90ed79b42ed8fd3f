"""Compare the light SHA-256 with that of hashlib."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest

from edgedec.digests import LARGE_BYTES, large_sha256, sha256, sha256_of_size


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 1000, 100_003])
def test_both_give_the_digest_of_hashlib(size: int) -> None:
    data = bytes(number * 7 % 251 for number in range(size))
    expected = hashlib.sha256(data).hexdigest()
    assert sha256(data).hexdigest() == expected
    for digest in (sha256(), large_sha256(), sha256_of_size(0), sha256_of_size(LARGE_BYTES)):
        digest.update(memoryview(data)[: size // 3])
        digest.update(memoryview(data)[size // 3 :])
        assert digest.hexdigest() == expected


def test_large_files_get_the_fast_one() -> None:
    assert type(sha256_of_size(LARGE_BYTES)) is type(hashlib.sha256())
    assert type(sha256_of_size(LARGE_BYTES - 1)) is type(sha256())


def test_the_small_one_does_not_load_hashlib() -> None:
    script = "import sys; from edgedec.digests import sha256; sha256(b'x'); print('hashlib' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
    )
