"""Run a command whose processes may open no socket except for those of the machine itself: ``python no_network.py
COMMAND...``.

A seccomp filter ends a process, by SIGSYS, as soon as it makes a socket of any family but AF_UNIX. The kernel applies it, so
it holds for Python, for native libraries and for every process that the command starts.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

__all__ = ["FORBIDDEN", "SUPPORTED", "forbid_networks"]

FORBIDDEN = -31  # return code of a process that SIGSYS ended, as subprocess reports it
# Machine -> (AUDIT_ARCH_*, number of the system call socket). Source: Linux, include/uapi/linux/audit.h and asm/unistd.h.
_MACHINES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
SUPPORTED = sys.platform == "linux" and platform.machine() in _MACHINES

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_ALLOW, _KILL_PROCESS = 0x7FFF0000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF: load a word, compare it with a constant, return
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # bytes of struct seccomp_data; the argument's lower half
_IO_URING_SETUP, _X32 = 425, 0x40000000  # a ring can make sockets too; x32 numbers its calls from there
_AF_UNIX = 1


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def forbid_networks() -> None:
    """Apply the filter to this process and to all that it starts from now on.

    Raises:
        OSError: the kernel refuses the filter.
    """
    arch, socket = _MACHINES[platform.machine()]
    # (code, steps forward if the comparison holds, and if not, constant); the last two are KILL and ALLOW.
    steps = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 0, 6, arch),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 4, 0, _X32),
        (_EQUAL, 3, 0, _IO_URING_SETUP),
        (_EQUAL, 0, 3, socket),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_EQUAL, 1, 0, _AF_UNIX),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = _Program(len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for words in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*words):
            number = ctypes.get_errno()
            raise OSError(number, f"prctl({words[0]}): {os.strerror(number)}")


if __name__ == "__main__":
    forbid_networks()
    os.execvp(sys.argv[1], sys.argv[1:])
