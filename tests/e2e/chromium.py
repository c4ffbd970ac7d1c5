"""A headless Chromium driven over its debugging pipe, with the standard library alone."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)


class Chromium:
    """One page of one browser, with its network requests and console messages."""

    def __init__(self) -> None:
        assert PATH is not None
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._number = 0
        self._unread = b""
        self._session: str | None = None
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Chromium reads from 3 and writes to 4; nothing of ours may stand there when they move.
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (theirs_in, theirs_out)]
        null = os.open(os.devnull, os.O_RDWR)
        self.pid = os.posix_spawn(
            PATH,
            [PATH, *FLAGS, f"--user-data-dir={self.profile.name}", "about:blank"],
            os.environ,
            file_actions=[
                *((os.POSIX_SPAWN_DUP2, null, fd) for fd in (1, 2)),
                (os.POSIX_SPAWN_DUP2, theirs[0], 3),
                (os.POSIX_SPAWN_DUP2, theirs[1], 4),
            ],
        )
        for fd in (theirs_in, theirs_out, null, *theirs):
            os.close(fd)
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._out)
        os.close(self._in)
        self.profile.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and wait for its response; events received meanwhile are stored."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], max(0, deadline - time.monotonic()))
            assert ready, "chromium does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "chromium is gone"
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:800])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(params["args"])[:800])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])

    def open(self, page: Path) -> None:
        """Load a file and wait until its scripts have run."""
        self.call("Page.navigate", url=page.as_uri())
        while self.js("document.readyState") != "complete":
            time.sleep(0.02)

    def js(self, expression: str) -> Any:
        """The value of an expression; a promise is awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def size(self, width: int, height: int, scale: float = 1) -> None:
        """The window, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=False,
        )  # fmt: skip

    def dark(self, on: bool) -> None:
        """Emulate the setting for a dark theme."""
        value = "dark" if on else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def mouse(self, kind: str, x: float, y: float, **others: Any) -> None:
        """`mouseMoved`, `mousePressed`, `mouseReleased` or `mouseWheel`."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **others)

    def frame(self) -> None:
        """Wait until pending changes have been drawn."""
        self.js("new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))")

    def screenshot(self, whole: bool = False) -> bytes:
        """The window, or the whole page, as PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])
