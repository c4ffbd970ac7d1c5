"""An API server that says what one of Kubernetes said: objects in memory, and refusals to order."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

OWNER = "kueue.x-k8s.io/job-uid"
POD = "/api/v1/namespaces/train/pods/trainer-0"
JOB = "/apis/batch/v1/namespaces/train/jobs/night"
GROUP = "/apis/kueue.x-k8s.io"
WORKLOADS = f"{GROUP}/v1beta1/namespaces/train/workloads"
WORKLOAD = f"{WORKLOADS}/job-night-4f1c2"
REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict"}
REASONS |= {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
DROP = 0  # in `refusals`: the connection ends without an answer


def status(code: int, message: str) -> dict[str, Any]:
    """As the API server tells a refusal."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": REASONS[code],
        "code": code,
    }


def thing(kind: str, name: str, uid: str, **labels: str) -> dict[str, Any]:
    """The part of an object that matters here."""
    metadata = {"name": name, "namespace": "train", "uid": uid, "resourceVersion": "1"}
    return {"kind": kind, "metadata": {**metadata, "labels": labels}, "status": {}}


class Recorded:
    """What is there, what was asked, and what is refused before anything is done."""

    def __init__(self) -> None:
        self.things = {
            POD: thing("Pod", "trainer-0", "aaaa"),
            JOB: thing("Job", "night", "bbbb"),
            GROUP: {"kind": "APIGroup", "preferredVersion": {"version": "v1beta1"}},
            WORKLOAD: thing("Workload", "job-night-4f1c2", "cccc", **{OWNER: "bbbb"}),
        }
        self.asked: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.refusals: list[int | tuple[int, str] | None] = []  # None: this one is answered
        self.url = ""

    def annotations(self, path: str) -> dict[str, str]:
        """Of an object, without those that were taken away."""
        return dict(self.things[path]["metadata"].get("annotations", {}))

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        where = urlsplit(path)
        if where.path == WORKLOADS:
            label, _, value = parse_qs(where.query)["labelSelector"][0].partition("=")
            found = [one for key, one in self.things.items() if key.startswith(WORKLOADS)]
            items = [one for one in found if one["metadata"]["labels"].get(label) == value]
            return 200, {"kind": "WorkloadList", "items": items}
        if where.path not in self.things:
            return 404, status(404, f'"{where.path.rpartition("/")[2]}" not found')
        one = self.things[where.path]
        if method == "PATCH":
            has = one["metadata"].setdefault("annotations", {})
            for key, value in body["metadata"]["annotations"].items():
                has.pop(key, None)
                if value is not None:
                    has[key] = value
        return 200, one


@contextmanager
def recorded() -> Iterator[Recorded]:
    """One that listens."""
    kept = Recorded()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._do()

        def do_PATCH(self) -> None:
            self._do()

        def _do(self) -> None:
            kept.asked.append((self.command, self.path))
            kept.headers.append(dict(self.headers))
            size = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(size)) if size else {}
            refusal = kept.refusals.pop(0) if kept.refusals else None
            if refusal == DROP:
                self.close_connection = True
                return
            extra: dict[str, str] = {}
            if refusal is None:
                code, told = kept.answer(self.command, self.path, body)
            else:
                code, wait = refusal if isinstance(refusal, tuple) else (refusal, "")
                extra = {"Retry-After": wait} if wait else {}
                told = status(code, f"told to say {code}")
            content = json.dumps(told).encode()
            self.send_response(code)
            for name, value in {**extra, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
