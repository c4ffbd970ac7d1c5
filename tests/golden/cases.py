"""The golden cases: files that a version of Headway wrote, and the result of reading them.

    FORMAT/NAME/about.toml      what it is, what it needs to be read, and which versions wrote it
    FORMAT/NAME/files/          the files as they were written
    FORMAT/NAME/expected.json   the result of reading them

`readers/FORMAT.py` reads a case; `recorders/FORMAT.py` writes one, see `record.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import io
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.cli import main
from headway.settings import read_toml

ROOT = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """One golden case."""

    format: str
    name: str

    @property
    def folder(self) -> Path:
        return ROOT / self.format / self.name

    @property
    def files(self) -> Path:
        return self.folder / "files"

    @property
    def expected(self) -> Path:
        return self.folder / "expected.json"

    @property
    def about(self) -> dict[str, Any]:
        return read_toml(self.folder / "about.toml")

    @property
    def reader(self) -> Any:
        """The module that reads the format."""
        return importlib.import_module(f"tests.golden.readers.{self.format}")

    @property
    def sealed(self) -> bool:
        """Whether a changed byte is to be noticed."""
        return bool(self.about["sealed"])

    def missing(self) -> list[str]:
        """The packages that reading needs and that are not installed."""
        return [name for name in self.about["needs"] if importlib.util.find_spec(name) is None]

    def copy(self, target: Path) -> Path:
        """The files where readers may write, as if they were written now."""
        files = Path(shutil.copytree(self.files, target / "files"))
        for path in (files, *files.rglob("*")):
            os.utime(path)
        return files

    def read(self, files: Path) -> Any:
        """The result of reading a copy of the files."""
        return self.reader.read(self.name, files)


def as_text(result: Any) -> str:
    """The result of reading a case, in the form in which it is compared."""
    return json.dumps(result, indent=1, sort_keys=True) + "\n"


def cases() -> list[Case]:
    """All that are recorded."""
    found = sorted(ROOT.glob("*/*/about.toml"))
    return [Case(path.parts[-3], path.parts[-2]) for path in found]


def command(*args: str) -> tuple[int, str]:
    """The exit code and the standard output of a `headway` command."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main(args)
    return code, out.getvalue()


def asked(*args: str) -> Any:
    """The JSON that a `headway` command prints."""
    code, out = command(*args)
    assert code == 0, f"headway {' '.join(args)} ended with {code}"
    return json.loads(out)


def listing(folder: Path) -> list[Path]:
    """Every file below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def sums(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in listing(folder)
    }


def described(tensor: Any) -> str:
    """The type, the shape and the SHA-256 of the bytes of a tensor."""
    import torch

    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    content = plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    dtype, shape = str(plain.dtype).removeprefix("torch."), list(plain.shape)
    return f"{dtype} {shape} {hashlib.sha256(content).hexdigest()}"


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in nested containers by its path; tensors are described."""
    import torch

    if isinstance(value, torch.Tensor):
        yield name, described(value)
    elif isinstance(value, bytes):
        yield name, f"bytes {value.hex()}"
    elif not isinstance(value, (dict, list, tuple)):
        yield name, value
    elif not value:
        yield name, f"empty {type(value).__name__}"
    elif isinstance(value, dict):
        for key, one in value.items():
            step = f".{key}" if isinstance(key, str) else f"[{key!r}]"
            yield from leaves(one, f"{name}{step}".removeprefix("."))
    else:
        for at, one in enumerate(value):
            step = f"[{at}]" if isinstance(value, list) else f"({at})"
            yield from leaves(one, f"{name}{step}")
