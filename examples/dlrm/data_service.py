"""A data service as production has it: a process of its own, slow to warm up, then steady.

python examples/dlrm/data_service.py --port 29777 --warmup 20 --rate 50

A trainer connects, says in one line of JSON which batches it wants, and reads them one after the
other: dense features, ids and clicks, as they lie in memory.
"""

import argparse
import contextlib
import ctypes
import json
import multiprocessing
import os
import socket
import socketserver
import time
from collections.abc import Iterator
from typing import Any

import torch
from train import DENSE, TABLES, Batch, click_batch


class Reader(socketserver.StreamRequestHandler):
    """One trainer's stream."""

    def handle(self) -> None:
        wanted = json.loads(self.rfile.readline())
        service: Any = self.server
        time.sleep(max(0.0, service.warm_at - time.monotonic()))
        due, index = time.monotonic(), wanted["start"]
        with contextlib.suppress(ConnectionError):
            while True:
                batch = click_batch(wanted["seed"], index, wanted["batch"], wanted["rows"])
                for tensor in (one.contiguous() for one in batch):
                    self.wfile.write(ctypes.string_at(tensor.data_ptr(), tensor.nbytes))
                index += wanted["stride"]
                due = max(due + service.period, time.monotonic())
                time.sleep(max(0.0, due - time.monotonic()))


class Service(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True

    def __init__(self, port: int, warmup: float, rate: float, parent: int | None = None) -> None:
        super().__init__(("127.0.0.1", port), Reader)
        self.warm_at = time.monotonic() + warmup
        self.period = 1 / rate if rate else 0.0
        self.parent = parent  # without which it ends

    def service_actions(self) -> None:
        if self.parent not in (None, os.getppid()):
            os._exit(0)


def start(warmup: float, rate: float) -> int:
    """A service of one's own, in a process that ends with this one; its port."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    parent = os.getpid()

    def serve() -> None:
        with Service(0, warmup, rate, parent) as service:
            theirs.send(service.server_address[1])
            service.serve_forever()

    context.Process(target=serve, daemon=True).start()
    port: int = ours.recv()
    return port


def read(port: int, **wanted: int) -> Iterator[Batch]:
    """Batches as they come."""
    batch = wanted["batch"]
    with socket.create_connection(("127.0.0.1", port)) as link, link.makefile("rb") as stream:
        link.sendall(json.dumps(wanted).encode() + b"\n")
        while True:
            dense = _take(stream, torch.float32, batch, DENSE)
            ids = _take(stream, torch.int64, batch, TABLES)
            yield dense, ids, _take(stream, torch.float32, batch)


def _take(stream: Any, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    content = bytearray(stream.read(dtype.itemsize * torch.Size(shape).numel()))
    if not content:
        raise EOFError("the data service has ended")
    return torch.frombuffer(content, dtype=dtype).reshape(shape)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=29777)
    parser.add_argument("--warmup", type=float, default=5.0, help="seconds until the first batch")
    parser.add_argument("--rate", type=float, default=0.0, help="batches per second; 0: no limit")
    args = parser.parse_args()
    with Service(args.port, args.warmup, args.rate) as service:
        print(f"serving clicks on port {args.port}", flush=True)
        service.serve_forever()
