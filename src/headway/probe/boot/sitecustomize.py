"""Python imports this file at the start of every process below `headway run`.

It installs the probe, and then runs the sitecustomize of the user's environment, if there is one.
An error here must not affect the job.
"""

import os
import sys


def _install() -> None:
    root = os.path.abspath(__file__)
    for _ in range(4):  # headway/probe/boot/sitecustomize.py -> the folder that holds headway
        root = os.path.dirname(root)
    sys.path.insert(0, root)
    try:
        from headway import probe
    finally:
        sys.path.remove(root)
    probe.install()


def _chain() -> None:
    boot_folder = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or ".") != boot_folder]
    for finder in sys.meta_path:
        if getattr(finder, "__name__", "") != "PathFinder":
            continue
        spec = finder.find_spec("sitecustomize", others)
        if spec is not None and spec.loader is not None:
            module = type(sys)("sitecustomize")
            module.__spec__, module.__file__ = spec, spec.origin
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)


if os.environ.get("HEADWAY_DIR"):
    try:
        _install()
    except Exception as error:
        if os.environ.get("HEADWAY_STRICT"):
            raise
        line = f"headway: not recording this process: {error!r} [not-recording]"
        print(line, file=sys.stderr)
_chain()
