"""The connection of a rank to its writer process, which is started if it is not running."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import sys
import time
from typing import Any

from headway.checkpoint.writer import address, protocol
from headway.checkpoint.writer.address import NoPrivateFolder
from headway.errors import HeadwayError
from headway.probe import ENV_FOLDER

START_S = 30.0  # start of Python on a busy machine
ANSWER_S = 60.0
CONNECT_POLL_S = 0.005
TAKEN_RETRY_S = 3.0  # a killed process may not have ended yet
child_processes: list[subprocess.Popen[bytes]] = []  # referenced, or Python warns about them


class WriterFailed(HeadwayError):
    """The writer process is not running, or could not do what was requested."""


class WriterTaken(WriterFailed):
    """Another process uses the writer of this name."""

    code = "writer-taken"


class WriterClient:
    """The connection to the writer of this name; the writer is started if it is not running."""

    def __init__(self, name: str, writer_idle_s: float) -> None:
        self.name = name
        self._end, self.hello, self._handles = _connect(name, writer_idle_s)

    def descriptors(self) -> list[int]:
        """Descriptors of the buffers; the caller owns them from now on."""
        descriptors, self._handles = self._handles, []
        return descriptors

    def nbytes(self) -> int:
        """Allocated bytes of the buffers that `descriptors` would return."""
        return sum(os.fstat(handle).st_blocks * 512 for handle in self._handles)

    def reserve(self, count: int, size: int) -> dict[str, Any]:
        """Allocate buffers; `descriptors()` returns them."""
        protocol.close(self.descriptors())
        answer, self._handles = self._ask({"op": "reserve", "count": count, "size": size})
        return answer

    def send(self, op: str, *descriptors: int, **message: Any) -> None:
        """Send a message that needs no answer."""
        try:
            protocol.send(self._end, {"op": op, **message}, descriptors)
        except protocol.PeerClosed as error:
            raise WriterFailed(
                f"the checkpoint writer has ended: {error}", code="writer-gone"
            ) from None

    def status(self) -> dict[str, Any]:
        """The buffers being written, and the outcomes so far."""
        return self._ask({"op": "status"})[0]

    def end(self) -> dict[str, Any]:
        """End the writer once everything is written."""
        self._end.settimeout(None)
        return self._ask({"op": "end"})[0]

    def close(self) -> None:
        """Disconnect; the writer keeps running."""
        protocol.close(self.descriptors())
        self._end.close()

    def __del__(self) -> None:
        """A training that ends early leaves its writer running."""
        if hasattr(self, "_end"):
            self.close()

    def _ask(self, message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        try:
            protocol.send(self._end, message)
            answer, handles = protocol.receive(self._end)
        except (protocol.PeerClosed, TimeoutError) as error:
            raise WriterFailed(
                f"the checkpoint writer does not answer: {error}", code="writer-silent"
            ) from None
        if "error" in answer:
            raise WriterFailed(answer["error"], code=answer["code"], **answer["fields"])
        return answer, handles


def peek(name: str) -> tuple[dict[str, Any], list[int]] | None:
    """The status and descriptors of another rank's writer; None if there is none."""
    try:
        with address.connect(name, ANSWER_S) as end:
            protocol.send(end, {"op": "look"})
            return protocol.receive(end)
    except (OSError, protocol.PeerClosed, NoPrivateFolder):
        return None


def _connect(name: str, writer_idle_s: float) -> tuple[socket.socket, dict[str, Any], list[int]]:
    until = time.monotonic() + START_S
    taken_until = time.monotonic() + TAKEN_RETRY_S
    child: subprocess.Popen[bytes] | None = None
    while time.monotonic() < until:
        end: socket.socket | None = None
        try:
            end = address.connect(name, ANSWER_S)
            protocol.send(end, {"op": "hello"})
            hello, handles = protocol.receive(end)
            if "taken" not in hello:
                return end, hello, handles
            end.close()
            if time.monotonic() > taken_until:
                raise WriterTaken(f"another process uses the checkpoint writer {name}")
        except NoPrivateFolder as error:
            raise WriterFailed(str(error), code=error.code) from None
        except (OSError, protocol.PeerClosed):
            if end is not None:
                end.close()
            code = child.poll() if child is not None else 0
            if code is not None and code > 0:
                reason = f": {line}" if (line := address.last_log_line(name)) else ""
                raise WriterFailed(
                    f"the checkpoint writer ended with code {code}{reason}",
                    code="writer-ended",
                    status=code,
                ) from None
            if code is not None:  # an ending writer may still have held the name
                child = _start(name, writer_idle_s)
        time.sleep(CONNECT_POLL_S)
    raise WriterFailed(
        f"no checkpoint writer started within {START_S:g} s", code="writer-start-timeout"
    )


def _start(name: str, writer_idle_s: float) -> subprocess.Popen[bytes]:
    """Start it in its own session, so that ending the process group of the job does not end it."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")}
    command = [sys.executable, "-m", "headway.checkpoint.writer", name, str(writer_idle_s)]
    try:
        log = address.open_log(name)
        try:
            child = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
    except OSError as error:
        raise WriterFailed(
            f"the checkpoint writer cannot be started: {error}", code="writer-not-started"
        ) from None
    child_processes.append(child)
    return child


def job_name() -> str:
    """A name that all attempts of the job share; empty if there is none."""
    names = (ENV_FOLDER, "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
    values = (os.environ.get(name, "") for name in names)
    # torchrun uses "none" for no name
    return next((name for name in values if name not in ("", "none")), "")


def writer_name(store: str, rank: int) -> str:
    """The name of the writer of this rank of this job, the same after a restart.

    A folder is identified by device and inode: containers may have other folders at the same path.
    """
    where = store
    if "://" not in store:
        with contextlib.suppress(OSError):
            os.makedirs(store, exist_ok=True)
            status = os.stat(store)
            where = f"{store} {status.st_dev} {status.st_ino}"
    identity = f"{os.geteuid()} {job_name()} {where} {rank}"
    return f"headway-checkpoint-{hashlib.sha256(identity.encode()).hexdigest()[:24]}"
