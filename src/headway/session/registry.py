"""The boosters that `--auto` can enable; each is named like its setting."""

from __future__ import annotations

RESTARTS = "restarts"
WARM = "warm"
HANG_WATCH = "hang_watch"
COMPILE_CACHE = "compile_cache"
LEARN = "learn"
AUTOTUNE = "autotune"
ASYNC_SAVE = "async_save"
PUBLISH = "publish"

BOOSTERS = (
    RESTARTS,
    WARM,
    HANG_WATCH,
    COMPILE_CACHE,
    LEARN,
    AUTOTUNE,
    ASYNC_SAVE,
    PUBLISH,
)
