"""Record a script whose first line is `import headway.auto`, without an inherited environment.

Under `headway run` it does nothing. Otherwise it creates a run folder as `headway run` does, and
writes the journal there.
"""

from __future__ import annotations

import os
import sys

from headway import probe


def _adopt() -> None:
    if probe.launcher_variable(probe.ENV_FOLDER):
        return
    from headway.errors import HeadwayError, with_code
    from headway.launch.run_folder import folder_of_process

    try:
        folder, launch = folder_of_process()
    except (HeadwayError, OSError) as error:  # the job continues without recording
        line = with_code(f"headway: not recording: {error}", code="not-recording")
        print(line, file=sys.stderr)
        return
    os.environ[probe.ENV_FOLDER] = str(folder)
    os.environ[probe.ENV_LAUNCH] = launch


_adopt()
probe.install()
