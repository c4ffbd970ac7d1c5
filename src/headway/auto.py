"""`import headway.auto` as a script's first line: the way in where the environment is cut off.

Under `headway run` it does nothing more than the environment did already. Without it, a run
folder is made as `headway run` would make it, and the journal goes there.
"""

from __future__ import annotations

import os
import sys

from headway import probe


def _adopt() -> None:
    if probe.launcher_variable(probe.ENV_FOLDER):
        return
    from headway.errors import HeadwayError, with_code
    from headway.launch.target import folder_of_process

    try:
        folder, launch = folder_of_process()
    except (HeadwayError, OSError) as error:  # the job goes on, unrecorded
        line = with_code(f"headway: not recording: {error}", code="not-recording")
        print(line, file=sys.stderr)
        return
    os.environ[probe.ENV_FOLDER] = str(folder)
    os.environ[probe.ENV_LAUNCH] = launch


_adopt()
probe.install()
