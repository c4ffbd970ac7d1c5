"""A loop without an optimizer that the hooks can see: all is said by calls of `headway`."""

import time

import headway

with headway.stage("preproc_creation"):
    time.sleep(0.2)
with headway.span("vocabulary"):
    time.sleep(0.1)
headway.progress(step=100)


def batches():
    for number in range(40):
        time.sleep(0.3 if number == 20 else 0.0)
        yield number


for number in headway.track(batches()):
    time.sleep(0.02)
    headway.step()
    headway.progress(samples=8 * (number + 1))
    if number == 30:
        with headway.span("checkpoint_save"):
            time.sleep(0.2)
        with headway.span("upload of metrics"):
            time.sleep(0.1)
