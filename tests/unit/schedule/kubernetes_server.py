"""A fake API server with recorded responses: objects in memory, and refusals on request.

The responses of a kube-apiserver to the same requests are in kubernetes/answers.json. Made up
here are responses of a busy or failing server (429, 5xx), and Kueue's Workload.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

OWNER = "kueue.x-k8s.io/job-uid"
POD = "/api/v1/namespaces/train/pods/trainer-0"
JOB = "/apis/batch/v1/namespaces/train/jobs/night"
GROUP = "/apis/kueue.x-k8s.io"
WORKLOADS = f"{GROUP}/v1beta1/namespaces/train/workloads"
WORKLOAD = f"{WORKLOADS}/job-night-4f1c2"
REASONS = {500: "InternalError", 503: "ServiceUnavailable"}
BUSY = "Too many requests, please try again later.\n"  # of its flow control, which sends no Status
DROP = 0  # in `refusals`: the connection ends without an answer
RECORDED = json.loads((Path(__file__).parent / "kubernetes" / "answers.json").read_text())
ANSWERS = {answer["name"]: answer for answer in RECORDED["answers"]}
REFUSED = {401: "no such token", 403: "may not get", 409: "conflict"}


def refusal(code: int) -> Any:
    """The body of an error response."""
    if code in REFUSED:
        return ANSWERS[REFUSED[code]]["answer"]
    if code == 429:
        return BUSY
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"told to say {code}",
        "reason": REASONS[code],
        "code": code,
    }


def workload(name: str, owner: str) -> dict[str, Any]:
    """The relevant part of a Workload."""
    metadata = {"name": name, "namespace": "train", "uid": "cccc", "labels": {OWNER: owner}}
    return {"kind": "Workload", "metadata": metadata, "status": {}}


class RecordedServer:
    """Objects, received requests, and the refusals of the next requests."""

    def __init__(self) -> None:
        pod, job, group = (deepcopy(ANSWERS[name]["answer"]) for name in ("pod", "job", "kueue"))
        workload_ = workload("job-night-4f1c2", job["metadata"]["uid"])
        self.things: dict[str, Any] = {POD: pod, JOB: job, GROUP: group, WORKLOAD: workload_}
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self.refusals: list[int | tuple[int, str] | None] = []  # None: this one is answered
        self.url = ""

    def annotations(self, path: str) -> dict[str, str]:
        """The current annotations of an object."""
        return dict(self.things[path]["metadata"].get("annotations", {}))

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        url = urlsplit(path)
        if url.path == WORKLOADS:
            label, _, value = parse_qs(url.query)["labelSelector"][0].partition("=")
            workloads = [item for key, item in self.things.items() if key.startswith(WORKLOADS)]
            items = [item for item in workloads if item["metadata"]["labels"].get(label) == value]
            return 200, {**ANSWERS["no workloads"]["answer"], "items": items}
        if url.path not in self.things:
            return 404, ANSWERS["no kueue" if url.path == GROUP else "no such pod"]["answer"]
        resource = self.things[url.path]
        if method == "PATCH":
            annotations = resource["metadata"].setdefault("annotations", {})
            for key, value in body["metadata"]["annotations"].items():
                annotations.pop(key, None)
                if value is not None:
                    annotations[key] = value
        return 200, resource


@contextmanager
def recorded_server() -> Iterator[RecordedServer]:
    """Start the server and yield it."""
    recorded = RecordedServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._do()

        def do_PATCH(self) -> None:
            self._do()

        def _do(self) -> None:
            recorded.requests.append((self.command, self.path))
            recorded.headers.append(dict(self.headers))
            size = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(size)) if size else {}
            recorded.bodies.append(body)
            refused = recorded.refusals.pop(0) if recorded.refusals else None
            if refused == DROP:
                self.close_connection = True
                return
            extra: dict[str, str] = {}
            if refused is None:
                code, response = recorded.answer(self.command, self.path, body)
            else:
                code, wait = refused if isinstance(refused, tuple) else (refused, "")
                extra = {"Retry-After": wait} if wait else {}
                response = refusal(code)
            content = (response if isinstance(response, str) else json.dumps(response)).encode()
            self.send_response(code)
            for name, value in {**extra, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    recorded.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield recorded
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
