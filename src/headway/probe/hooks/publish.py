"""Model exports for serving: torch.export, TorchScript, AOTInductor, ONNX."""

from __future__ import annotations

from types import ModuleType

from headway.probe.patching import spanned

SPAN = "publish"


def install_export(export: ModuleType) -> None:
    """torch.export"""
    for name in ("export", "save"):
        spanned(export, name, SPAN, starts=False)


def install_jit(serialization: ModuleType) -> None:
    """torch.jit._serialization"""
    spanned(serialization, "save", SPAN, starts=False)


def install_inductor(inductor: ModuleType) -> None:
    """torch._inductor"""
    spanned(inductor, "aoti_compile_and_package", SPAN, starts=False)


def install_onnx(onnx: ModuleType) -> None:
    """torch.onnx"""
    spanned(onnx, "export", SPAN, starts=False)
