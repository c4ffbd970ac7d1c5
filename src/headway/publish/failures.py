"""Tell transient failures of the machine from those of the anchor, the recipe or user code."""

from __future__ import annotations

import errno

from headway.errors import PublishDeferred

# Temporary lack of resources: error numbers, and words in errors of other types.
TRANSIENT_ERRNOS = (
    *(errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT),
    *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENETDOWN, errno.ENETUNREACH),
    *(errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EHOSTUNREACH),
)
TRANSIENT_WORDS = (
    "out of memory",
    "allocate memory",
    "bad_alloc",
    "no space left",
    "killed signal",
)


def is_transient(error: BaseException | None) -> bool:
    """Whether a temporary problem of the machine caused the error."""
    for _ in range(10):  # causes
        if error is None:
            return False
        if isinstance(error, (MemoryError, TimeoutError, PublishDeferred)):
            return True
        if isinstance(error, OSError) and error.errno in TRANSIENT_ERRNOS:
            return True
        if any(words in str(error).lower() for words in TRANSIENT_WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def raise_if_transient(text: str, error: BaseException) -> None:
    """Raise PublishDeferred if a temporary problem of the machine caused the error."""
    if is_transient(error):
        raise PublishDeferred(text, code="machine-not-able") from error


def describe_error(error: Exception) -> str:
    """Type and first line of an error of user code."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
