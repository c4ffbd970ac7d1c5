"""Software, CPU and GPU facts that compiled and tuned kernels depend on.

Nothing here initializes a GPU: the facts come from /proc, from NVML and from modules that the job
has already imported.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

# Settings that determine what is compiled, and those of them that only concern storage, logging or
# the speed of the compile.
COMPILE_SETTINGS = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_COMPILE_", "TRITON_")
IRRELEVANT_SETTINGS = re.compile(
    r"_DIR$|_DEBUG|_TRACE|_PRINT|_LOG|_THREADS|_JOB_ID|_SOURCES|_VALUES|STICKY_PGO|_HOME$|_PATH$"
    r"|_OVERRIDE|_DUMP|METRIC|REPORT|PROVENANCE|WORKER|SUBPROC"
)
# CPU flags that a compiler may use with `-march=native`. Other flags describe the operating system
# and its protections.
INSTRUCTIONS = re.compile(r"s?sse|pni$|avx|fma|f16c|bmi|abm|popcnt|movbe|adx|gfni|xop|tbm|apx|amx")
NON_CODE_FOLDERS = ("__pycache__", "include", "share", "test", "lib", "bin")  # folders of a package
PLACE = "place"  # paths of torch and Python: if they differ, only C++ code is compiled again
_ARM = os.uname().machine in ("aarch64", "arm64")
NVML_LIBRARY = "libnvidia-ml.so.1"
NVML_NAME_BYTES = 96


def compile_facts(torch: ModuleType, env: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Facts that have to be equal for one process to use compiled code of another."""
    version = torch.version
    return {
        "torch": str(torch.__version__),
        "git": (getattr(version, "git_version", None) or "")[:12],
        "python": sys.implementation.cache_tag,
        "cuda": getattr(version, "cuda", None),
        "hip": getattr(version, "hip", None),
        "triton": _triton_version(),
        "driver": _driver_branch(),
        "gpu": gpu_models(),
        "machine": os.uname().machine,
        "isa": cpu_instructions(),
        "glibc": _glibc(),
        "libstdcxx": _libstdcxx(),
        "env": compile_settings(env),
        PLACE: [os.path.dirname(torch.__file__ or ""), sys.base_prefix],
    }


def compile_key(facts: Mapping[str, Any]) -> str:
    """A key that is equal for all processes that can share compiled code."""
    relevant = {name: value for name, value in facts.items() if name != PLACE}
    text = json.dumps(relevant, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def compile_settings(env: Mapping[str, str]) -> dict[str, str]:
    """The settings that determine what is compiled."""
    names = [name for name in sorted(env) if name.startswith(COMPILE_SETTINGS)]
    return {name: env[name] for name in names if not IRRELEVANT_SETTINGS.search(name)}


def package_digest(package: str) -> str:
    """A digest of names, sizes and modification times of a package's files."""
    result = hashlib.sha256()
    for folder, folders, names in os.walk(package):
        folders[:] = sorted(name for name in folders if name not in NON_CODE_FOLDERS)
        for name in sorted(names):
            status = os.stat(os.path.join(folder, name), follow_symlinks=False)
            relative = os.path.relpath(folder, package)
            result.update(f"{relative}/{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return result.hexdigest()[:32]


def gpu_models() -> list[str]:
    """The GPU models of this machine."""
    models = set()
    for path in glob.glob("/proc/driver/nvidia/gpus/*/information"):
        for line in _lines(path):
            name, _, value = line.partition(":")
            if name == "Model":
                models.add(value.strip())
    return sorted(models)


def cpu_instructions() -> list[str]:
    """CPU flags that compiled code may depend on; on ARM all flags."""
    words = sorted(set(cpu_features().split()))
    return [name for name in words if _ARM or INSTRUCTIONS.match(name)]


def cpu_features() -> str:
    """All CPU flags, from /proc/cpuinfo."""
    for line in _lines("/proc/cpuinfo"):
        if line.startswith(("flags", "Features")):
            return line.partition(":")[2].strip()
    return ""


def _driver_branch() -> str | None:
    """The branch of the NVIDIA driver: 580 of 580.65.06."""
    for line in _lines("/proc/driver/nvidia/version"):
        match = re.search(r"\b(\d{3,})\.\d+", line)
        if match:
            return match[1]
    return None


def _triton_version() -> str | None:
    """The version of Triton from its dist-info folder, as importing it is slow."""
    for place in sys.path:
        for name in ("triton", "pytorch_triton", "triton_rocm"):
            for path in glob.glob(os.path.join(glob.escape(place), f"{name}-*.dist-info")):
                return os.path.basename(path)[len(name) + 1 : -len(".dist-info")]
    return None


def _glibc() -> str | None:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        return None


def _libstdcxx() -> str | None:
    """The version of the libstdc++ that this process has loaded."""
    for line in _lines("/proc/self/maps"):
        match = re.search(r"libstdc\+\+\.so\.(6[\d.]*)", line)
        if match:
            path = line.split(None, 5)[-1].strip()
            return os.path.realpath(path).rpartition(".so.")[2]
    return None


def _lines(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            yield from file
    except OSError:
        return


def tuning_facts() -> dict[str, Any]:
    """The fields that tuning events and advice files share."""
    return {
        "gpu": current_gpu() or _cpu_model(),
        "driver": _query_nvml()[1],
        "triton": _module_version("triton"),
        "torch": _module_version("torch"),
    }


def current_gpu() -> str | None:
    """The name of the current device; before it is initialized, of all if they are equal."""
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
    """The CPU model, for tuning without a GPU."""
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
    """The names of all GPUs and the driver version from NVML, without a CUDA context."""
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
