"""Where the job's own code stands, below torch, Python and us."""

from __future__ import annotations

import os
import sys
from typing import Any


def calling_line(besides: Any = None) -> str:
    """The innermost frame that is the job's and not of code `besides`, as `file:line name`."""
    ours = os.path.dirname(os.path.dirname(__file__))
    torch = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or __file__)
    python = os.path.dirname(os.__file__)
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        foreign = file.startswith((ours + os.sep, torch + os.sep, "<")) or (
            file.startswith(python + os.sep) and "-packages" not in file
        )
        if not foreign and frame.f_code is not besides:
            return f"{file}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return ""
