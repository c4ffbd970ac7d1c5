"""Without TorchRec."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import pytest

from headway.errors import MissingExtra
from tests.support import has_code


@pytest.mark.skipif(find_spec("torchrec") is not None, reason="torchrec is installed")
@pytest.mark.timeout(60)
def test_a_missing_torchrec_is_told() -> None:
    with pytest.raises(MissingExtra, check=has_code("missing-package")):
        importlib.import_module("headway.integrations.torchrec")
