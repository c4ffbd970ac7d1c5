"""Which parts of a checkpoint are unpickled, and which classes are allowed. Imports torch.

Unpickling runs any code that a file names. Files that only this user can have written are loaded as
`torch.load` and DCP load them. Of all others `.metadata` is read with a list of allowed classes,
and values by `torch.load(weights_only=True)` with the classes that the training has allowed too.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as described
from torch.distributed.checkpoint.metadata import Metadata

from headway.checkpoint.state import Name, Skeleton
from headway.errors import CheckpointUntrusted

ALLOW = "torch.serialization.add_safe_globals"
METADATA_CLASSES = (
    *("Metadata", "MetadataIndex", "StorageMeta", "BytesStorageMetadata", "TensorStorageMetadata"),
    *("ChunkStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING"),
)
ALLOWED_CLASSES = {
    ("collections", "OrderedDict"),
    ("builtins", "dict"),
    ("builtins", "list"),
    ("builtins", "set"),
    ("builtins", "tuple"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    (filesystem.__name__, "_StorageInfo"),
    *((described.__name__, name) for name in METADATA_CLASSES),
}


def load_metadata(content: bytes, *, trusted: bool = False) -> Metadata:
    """Parse `.metadata`; CheckpointUntrusted if it contains classes that it never needs."""
    try:
        metadata = _RestrictedUnpickler(io.BytesIO(content)).load()
    except CheckpointUntrusted:
        if not trusted:
            raise
        metadata = pickle.loads(content)
    if not isinstance(metadata, Metadata):
        raise pickle.UnpicklingError(f"it is a {type(metadata).__name__}")
    return metadata


def load_value(content: io.BytesIO, *, trusted: bool = False) -> Any:
    """Load a value; CheckpointUntrusted if it needs a class that the training has not allowed."""
    if trusted:
        return torch.load(content, weights_only=False)
    with torch.serialization.safe_globals([Skeleton, Name, frozenset]):
        try:
            return torch.load(content, weights_only=True)
        except pickle.UnpicklingError as error:
            content.seek(0)
            raise _untrusted_error(
                _unsafe_classes(content), str(error).partition("\n")[0]
            ) from None


class _RestrictedUnpickler(pickle.Unpickler):
    """Creates only what describes a DCP checkpoint."""

    def find_class(self, module: str, name: str) -> Any:
        """Raise for any other class."""
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) not in ALLOWED_CLASSES:
            text = f"its .metadata needs {module}.{name}, which no DCP checkpoint needs"
            raise CheckpointUntrusted(text, classes=[f"{module}.{name}"])
        return super().find_class(module, name)


def _unsafe_classes(content: io.BytesIO) -> list[str]:
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(content))
    except Exception:  # it may be damaged as well
        return []


def _untrusted_error(classes: list[str], reason: str) -> CheckpointUntrusted:
    if not classes:
        return CheckpointUntrusted(
            f"a value cannot be loaded without running code: {reason}; "
            "to allow it for this store: Checkpointer(..., trust=True)"
        )
    names = ", ".join(classes)
    text = (
        f"a value of the checkpoint needs {names}, and other users may have written it; "
        f"to allow it: {ALLOW}([{names}]), or for this store: Checkpointer(..., trust=True)"
    )
    return CheckpointUntrusted(text, classes=classes)
