"""Evaluation of stacks."""

from __future__ import annotations

from headway.launch.hang import stacks

DUMP = """\
Thread 0x00007f6cb5a6fb81 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/queue.py", line 180 in get

Current thread 0x00007f6cb5a6fb80 (most recent call first):
  File "/venv/site-packages/torch/autograd/graph.py", line 979 in _engine_run_backward
  File "/venv/site-packages/torch/_tensor.py", line 623 in backward
  File "/home/me/train.py", line 8 in <module>
"""


def test_the_main_thread_is_the_oldest() -> None:
    frames = stacks.main_thread(DUMP)
    assert frames[0].endswith("graph.py:979 in _engine_run_backward")
    assert stacks.user_frame(frames) == "/home/me/train.py:8 in <module>"
    assert stacks.main_thread("") == ()
    assert stacks.user_frame(()) == ""


def test_the_rank_that_does_not_wait_is_behind() -> None:
    waits = stacks.main_thread(DUMP)
    sleeps = ("/home/me/train.py:11 in <module>",)
    assert stacks.odd_one_out({0: waits, 1: sleeps}) == 1
    assert stacks.odd_one_out({0: waits, 1: waits, 2: waits, 3: sleeps}) == 3
    assert stacks.odd_one_out({0: waits, 1: waits}) is None
    assert stacks.odd_one_out({0: sleeps, 1: sleeps}) is None
    assert stacks.odd_one_out({0: sleeps}) is None
