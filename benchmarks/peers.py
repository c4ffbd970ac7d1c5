"""Environments of their own for the tools that Headway is compared with."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "peers": ["ml-goodput-measurement==0.2.3", "opentelemetry-sdk"],
    # Without its dependencies, as it would fetch a torch of its own; these are what it needs.
    "recover": ["defusedxml", "nvidia-ml-py", "packaging", "psutil", "pyyaml", "pynvml", "numpy"],
    "checkpoint": [
        *("lightning==2.6.6", "numpy", "safetensors", "psutil", "pynvml", "deprecated", "requests"),
        *("packaging", "pyyaml", "aiofiles", "aiohttp", "importlib-metadata", "nest-asyncio"),
        "grpcio",
    ],
    "regressions": ["ruptures==1.1.10", "numpy"],
}
ALONE = {
    "recover": ["nvidia-resiliency-ext==0.4.1"],
    "checkpoint": ["torch_checkpointing==0.1.1", "dlrover==0.6.1", "torchsnapshot==0.1.0"],
}


def python(name: str = "peers") -> str:
    """The interpreter of an environment, which is made at the first call."""
    folder = ROOT / f".venv-{name}"
    binary = folder / "bin" / "python"
    ready = folder / ".ready"
    if not ready.exists():
        print(f"installing {', '.join(ALONE.get(name, PACKAGES[name]))} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(binary), "-m", "pip", "install", "-q"]
        torch = [f"torch=={version('torch').partition('+')[0]}"] if name in ALONE else []
        subprocess.run([*install, *torch, *PACKAGES[name]], check=True)
        if name in ALONE:
            subprocess.run([*install, "--no-deps", *ALONE[name]], check=True)
        ready.touch()
    return str(binary)


if __name__ == "__main__":
    print(python(*sys.argv[1:]))
