"""Copy tensors into staging buffers while the training continues."""

from __future__ import annotations
