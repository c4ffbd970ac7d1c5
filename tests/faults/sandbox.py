"""Runs a command under a seccomp filter, as container runtimes and clusters have them.

python sandbox.py NAME,NAME,... COMMAND...    the names are those of DENIED
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
LOAD, EQUAL, ALL_BITS, RETURN = 0x20, 0x15, 0x45, 0x06  # of classic BPF
MAP_SHARED, PROT_WRITE = 1, 2
ARGUMENTS = 16  # offset in struct seccomp_data

# By kind: what is denied, and how. Numbers of system calls on x86_64.
DENIED = {
    "ptrace": ([101, 310, 311], errno.EPERM),  # also process_vm_readv and _writev
    "pidfd": ([434, 424, 438], errno.EPERM),  # open, send_signal, getfd
    "signalfd": ([282, 289], errno.ENOSYS),
    "links": ([86, 265], errno.EPERM),
    "locks": ([73], errno.ENOLCK),
    "priorities": ([141], errno.EPERM),
    "groups": ([109], errno.EPERM),  # setpgid
    "subreaper": ([157], errno.EPERM),  # prctl
    "mmap": ([9], errno.ENODEV),  # of files, for writing: only shared mappings
}


def filters(kinds: list[str]) -> bytes:
    """The program: an instruction is a code, two jumps and a value."""
    lines = [(LOAD, 0, 0, 0)]  # the number of the call
    for kind in kinds:
        numbers, error = DENIED[kind]
        for number in numbers:
            if kind == "mmap":
                body = [
                    (LOAD, 0, 0, ARGUMENTS + 2 * 8),
                    (ALL_BITS, 0, 3, PROT_WRITE),
                    (LOAD, 0, 0, ARGUMENTS + 3 * 8),
                    (ALL_BITS, 0, 1, MAP_SHARED),
                    (RETURN, 0, 0, ERRNO | error),
                    (RETURN, 0, 0, ALLOW),
                ]
            else:
                body = [(RETURN, 0, 0, ERRNO | error)]
            lines += [(EQUAL, 0, len(body), number), *body]
    lines.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def main() -> None:
    program = ctypes.create_string_buffer(filters(sys.argv[1].split(",")))
    header = struct.pack("HxxxxxxP", (len(program) - 1) // 8, ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, FILTER, header):
        sys.exit(f"no filter: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
