"""`headway run --async-save`: saves of an unmodified program, written in the background.

A call copies what it saves and returns. A thread writes the copy and renames it to the target.
Whatever could notice that the file does not exist yet waits for it.
"""

from __future__ import annotations
