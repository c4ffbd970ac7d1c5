"""Asks for a compile cache and says that it has compiled, without a compile and without torch.

A word `name=text` makes a file in the cache folder, as a compile does, and `name=x*1000` one of
that size; the others are orders.
"""

import os
import signal
import sys
import time
from pathlib import Path

from torch._dynamo.callback import callback_handler

words = sys.argv[1:]
if "deaf" in words:  # it lives on when its launcher is killed
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "ask" not in words:
    callback_handler.run_start_callbacks(None)
    for word in words:
        if "=" in word:
            name, _, text = word.partition("=")
            text, _, times = text.partition("*")
            path = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text * int(times or 1))
    callback_handler.run_end_callbacks(None)
    with open("compiled", "a") as file:
        file.write("x")
for word in words:
    if word.startswith("meet:"):  # until another job has come as far
        here, there = word.split(":")[1:]
        Path(here).touch()
        while not Path(there).exists():
            time.sleep(0.01)
    if word.startswith("break:"):  # the store is gone, and something else is in its place
        store = Path(word.partition(":")[2])
        store.rename(f"{store}.gone")
        store.touch()
if "die" in words and not os.path.exists("died"):
    Path("died").touch()
    os.kill(os.getpid(), signal.SIGKILL)
