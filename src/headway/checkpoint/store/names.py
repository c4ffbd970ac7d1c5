"""What the folders of a store are called, and what a name says."""

from __future__ import annotations

import re
import secrets

from headway.checkpoint.store.manifest import SAVE_ID
from headway.errors import UsageError

LATEST = "latest"
DRAFT_LOCK = "lock"  # in a draft: held by all who write it
OWNER_PREFIX = "owner-"  # in a draft behind a URL: who writes it
ANCHOR = "anchor"  # in a checkpoint that is pinned
LAST_STEP = 10**10 - 1

STEP = re.compile(r"step-(\d{10})")
REMOTE_STEP = re.compile(rf"step-(\d{{10}})-({SAVE_ID})")
DRAFT = re.compile(rf"\.draft-(\d{{10}})-({SAVE_ID})")
REPLACED = re.compile(rf"\.aside-(\d{{10}})-({SAVE_ID})")
ABORT_MARK = re.compile(rf"\.given-up-(\d{{10}})-({SAVE_ID})")
TRASH = re.compile(r"\.trash-\d{10}-[0-9a-f]+")
REPLACEMENT = re.compile(r"\.new-.+")  # a file that was to replace another


def step_name(number: int) -> str:
    """A checkpoint."""
    return f"step-{_check_step(number):010}"


def remote_step_name(number: int, save_id: str) -> str:
    """A checkpoint behind a URL, and its draft."""
    return f"{step_name(number)}-{_check_save_id(save_id)}"


def draft_name(number: int, save_id: str) -> str:
    """A checkpoint that is being written."""
    return f".draft-{_check_step(number):010}-{_check_save_id(save_id)}"


def replaced_name(number: int, save_id: str) -> str:
    """A checkpoint that was replaced by another save of its step."""
    return f".aside-{_check_step(number):010}-{_check_save_id(save_id)}"


def abort_mark_name(number: int, save_id: str) -> str:
    """The mark of a save that will never be a checkpoint."""
    return f".given-up-{_check_step(number):010}-{_check_save_id(save_id)}"


def trash_name(number: int) -> str:
    """What is being deleted."""
    return f".trash-{_check_step(number):010}-{secrets.token_hex(8)}"


def _check_step(number: int) -> int:
    if not 0 <= number <= LAST_STEP:
        raise UsageError(
            f"a step is between 0 and {LAST_STEP}, not {number}",
            code="step-out-of-range",
            step=number,
        )
    return number


def _check_save_id(save_id: str) -> str:
    if re.fullmatch(SAVE_ID, save_id) is None:
        raise UsageError(
            f"a save id is 1 to 64 letters, digits, - and _, not {save_id!r}",
            code="save-id-invalid",
        )
    return save_id
