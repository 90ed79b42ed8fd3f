"""The loading of a compiled library of the project through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgedec.errors import DeviceError
from edgedec.host.install_hint import install_again

__all__ = ["Functions", "declare", "open_library"]

Functions = Mapping[str, tuple[Any, tuple[Any, ...]]]  # name -> type of the result, types of the arguments


def open_library(path: Path, functions: Functions, *, abi: tuple[str, int], title: str) -> ctypes.CDLL:
    """Load a library and declare its functions.

    Args:
        path: the library's file.
        functions: all functions that are called.
        abi: name of the function that returns the version of the interface, and the version that is needed.
        title: name of the library in messages.

    Raises:
        DeviceError: the file is not this library, or has another version.
    """
    name, needed = abi
    try:
        library = ctypes.CDLL(str(path))
        version = getattr(library, name)()
        if version != needed:  # checked first, because another version may lack some of the functions
            raise DeviceError(f"{path} has interface {version}, this edgedec needs {needed}; {install_again()}")
        declare(library, functions)
    except (OSError, AttributeError) as error:
        raise DeviceError(f"{path} is not {title}: {error}; {install_again()}") from error
    return library


def declare(library: ctypes.CDLL, functions: Functions) -> None:
    """Declare functions of a library.

    Raises:
        AttributeError: the library lacks one of them.
    """
    for symbol, (result, arguments) in functions.items():
        function = getattr(library, symbol)
        function.restype, function.argtypes = result, arguments
