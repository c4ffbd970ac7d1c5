"""Quota files that are invalid."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.schedule import quotas
from tests.support import has_code


@pytest.mark.parametrize(
    ("wrong", "code", "fields"),
    [
        (b"a,4,-1\n", "quota-line-invalid", {"line": 1}),
        (b"a,4\n\nb,4,nan\n", "quota-line-invalid", {"line": 3}),
        (b"a,4,1,2\n", "quota-line-invalid", {"line": 1}),
        (b"a\n", "quota-line-invalid", {"line": 1}),
        (b"a,-5\nb,1\n", "quota-line-invalid", {"line": 1}),
        (b"a,many\nb,1\n", "quota-line-invalid", {"line": 1}),
        (b"a,1.5\n", "quota-line-invalid", {"line": 1}),
        (b",5\n", "quota-line-invalid", {"line": 1}),
        (b"a,1\nb,2\na,3\n", "quota-duplicate", {"tenant": "a"}),
        (b"tenant,gpus\n", "quota-file-empty", {}),
        (b"", "quota-file-empty", {}),
        (b"\xff\xfe\x00", "file-unreadable", {}),
    ],
)
def test_invalid_quotas(tmp_path: Path, wrong: bytes, code: str, fields: dict[str, object]) -> None:
    file = tmp_path / "quota.csv"
    file.write_bytes(wrong)
    for reader in (quotas.read_quotas, quotas.read_quota_changes):
        with pytest.raises(UsageError, check=has_code(code)) as error:
            reader(file)
        assert error.value.fields == fields and "\n" not in str(error.value)
