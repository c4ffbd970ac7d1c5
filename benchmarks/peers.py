"""An environment of its own for the tools that Headway is compared with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / ".venv-peers"
PACKAGES = ("ml-goodput-measurement==0.2.3", "opentelemetry-sdk")


def python() -> str:
    """Its interpreter; the environment is made at the first call."""
    binary = FOLDER / "bin" / "python"
    ready = FOLDER / ".ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
        subprocess.run([str(binary), "-m", "pip", "install", "-q", *PACKAGES], check=True)
        ready.touch()
    return str(binary)


if __name__ == "__main__":
    print(python())
