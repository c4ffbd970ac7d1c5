"""Copy a run folder to a URL in the background, through fsspec where it is installed."""

from __future__ import annotations

import threading
from pathlib import Path

from headway.journal.run_files import COMMAND_JSON
from headway.storage.remote import filesystem

UPLOAD_EVERY_S = 30.0  # seconds between two uploads


class RunUploader:
    """Uploads changed files periodically and once at the end."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.error = ""
        self._sent: dict[Path, tuple[int, int]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="headway-ship", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Upload what is left; `error` says what could not be uploaded."""
        self._stop.set()
        self._thread.join()
        self.send()

    def _loop(self) -> None:
        while not self._stop.wait(UPLOAD_EVERY_S):
            self.send()

    def send(self) -> None:
        """Upload every file that has changed since it was last uploaded."""
        try:
            fs, root = filesystem(self.url)
            for path in sorted(self.folder.rglob("*")):
                if path.name.startswith(".") or path.name == COMMAND_JSON:
                    continue  # messages between launchers; secrets of a command
                state = path.stat()
                key = (state.st_size, state.st_mtime_ns)
                # Written through a mapping: its modification time does not change.
                live = path.suffix == ".pulse"
                if not path.is_file() or (self._sent.get(path) == key and not live):
                    continue
                remote = f"{root.rstrip('/')}/{path.relative_to(self.folder).as_posix()}"
                fs.makedirs(remote.rpartition("/")[0], exist_ok=True)
                fs.put_file(str(path), remote)
                self._sent[path] = key
            self.error = ""
        except Exception as error:  # whatever a remote file system raises: the job continues
            self.error = f"{type(error).__name__}: {error}"
