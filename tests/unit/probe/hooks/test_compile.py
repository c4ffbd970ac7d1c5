"""Journal fields of a compile; tests/integration/test_probe.py has real compiles."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from headway.probe import import_hook, patching
from headway.probe.hooks.compile import describe_compile
from headway.probe.recorder import recorder


@pytest.mark.parametrize(("device", "part"), [(None, "cpp"), ("cuda", "triton"), ("xpu", "triton")])
def test_kernels_are_named_by_what_they_are(
    device: str | None, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch has one column for all compilers of kernels."""
    kinds = {name: SimpleNamespace(_initialized=name == device) for name in ("cuda", "xpu")}
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**kinds))  # type: ignore[arg-type]
    metrics = SimpleNamespace(triton_compile_time_us=9_200_000, dynamo_cumulative_compile_time_us=1)
    assert describe_compile(metrics)["parts_us"] == {"dynamo": 1, part: 9_200_000}


@pytest.mark.parametrize(
    ("inside", "span"), [(None, "import"), ("compile", "compile_import"), ("data", "import")]
)
def test_whose_import_of_the_compiler_it_is(
    inside: str | None, span: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_spans: list[Any] = []
    monkeypatch.setattr(recorder, "begin", lambda name, **fields: opened_spans.append(name))
    with patching.within(inside or "nothing"):
        import_hook._begin("compile_import", "torch._dynamo")
        import_hook._begin("import", "torch")
    assert opened_spans == [span, "import"]
