"""What a tuning is good for: this GPU, this Triton, this torch."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

NVML_LIBRARY = "libnvidia-ml.so.1"
NVML_NAME_BYTES = 96  # bytes of a name, as NVML has it


def tuning_facts() -> dict[str, Any]:
    """The fields that a record and a file of advice have in common."""
    return {
        "gpu": current_gpu() or _cpu_model(),
        "driver": _query_nvml()[1],
        "triton": _module_version("triton"),
        "torch": _module_version("torch"),
    }


def current_gpu() -> str | None:
    """The name of the device that is current, or of all devices where none has been touched."""
    for kind in ("torch.cuda", "torch.xpu"):
        device: Any = sys.modules.get(kind)
        if device is not None and device.is_initialized():
            return _device_name(kind, device.current_device())
    names = set(_query_nvml()[0])
    return names.pop() if len(names) == 1 else None


@functools.cache
def _device_name(kind: str, index: int) -> str:
    return str(sys.modules[kind].get_device_name(index))


@functools.cache
def _cpu_model() -> str:
    """What tunes where there is no GPU."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            models = [line.partition(":")[2] for line in file if line.startswith("model name")]
    except OSError:
        models = []
    return f"cpu {models[0].strip() if models else ''}".strip()


def _module_version(name: str) -> str | None:
    return getattr(sys.modules.get(name), "__version__", None)


@functools.cache
def _query_nvml() -> tuple[tuple[str, ...], str | None]:
    """The names of all GPUs and the driver's version, from NVML: it needs no CUDA context."""
    try:
        nvml = ctypes.CDLL(NVML_LIBRARY)
        if nvml.nvmlInit_v2() != 0:
            return (), None
    except (OSError, AttributeError):
        return (), None
    try:
        text = ctypes.create_string_buffer(NVML_NAME_BYTES)
        driver = None
        if nvml.nvmlSystemGetDriverVersion(text, NVML_NAME_BYTES) == 0:
            driver = text.value.decode()
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        names = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
            if nvml.nvmlDeviceGetName(handle, text, NVML_NAME_BYTES) == 0:
                names.append(text.value.decode())
        return tuple(names), driver
    finally:
        nvml.nvmlShutdown()
