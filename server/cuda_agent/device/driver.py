"""The part of the CUDA driver API that a worker needs, through ctypes: modules, raw launches, events, attributes.

cupy is used for memory and comparison only; going to the driver directly keeps launches independent of cupy's
versions, and lets `doctor` say what is wrong when cupy is not installed. Names and numbers are those of cuda.h.
"""

from __future__ import annotations

import ctypes
import importlib.util
from functools import lru_cache
from typing import Any

SUCCESS = 0
OUT_OF_MEMORY = 2
NOT_FOUND = 500
# Refusals of one launch or load: the context lives on. Everything else is taken as fatal.
HARMLESS = {
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    200: "CUDA_ERROR_INVALID_IMAGE",
    209: "CUDA_ERROR_NO_BINARY_FOR_GPU",
    218: "CUDA_ERROR_INVALID_PTX",
    222: "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    500: "CUDA_ERROR_NOT_FOUND",
    701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    720: "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
    801: "CUDA_ERROR_NOT_SUPPORTED",
}

# CUdevice_attribute
ATTRIBUTES = {
    "threads_per_block": 1,
    "shared_per_block": 8,
    "warp_size": 10,
    "registers_per_block": 12,
    "clock_khz": 13,
    "sms": 16,
    "memory_clock_khz": 36,
    "bus_bits": 37,
    "l2_bytes": 38,
    "threads_per_sm": 39,
    "major": 75,
    "minor": 76,
    "shared_per_sm": 81,
    "registers_per_sm": 82,
    "shared_per_block_optin": 97,
    "blocks_per_sm": 106,
}
FUNC_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
FUNC_SHARED = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
FUNC_MAX_THREADS = 0  # CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK


class DriverError(Exception):
    def __init__(self, call: str, code: int) -> None:
        name, text = describe(code)
        super().__init__(f"{name} ({text})")
        self.call, self.code, self.name = call, code, name

    @property
    def fatal(self) -> bool:
        return self.code not in HARMLESS


@lru_cache(1)
def library() -> ctypes.CDLL:
    """libcuda. Raises OSError where there is no driver."""
    return ctypes.CDLL("libcuda.so.1")


def call(name: str, *args: Any) -> None:
    """Raises DriverError unless the function answers CUDA_SUCCESS."""
    code = getattr(library(), name)(*args)
    if code != SUCCESS:
        raise DriverError(name, code)


def has(name: str) -> bool:
    return hasattr(library(), name)


def describe(code: int) -> tuple[str, str]:
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    library().cuGetErrorName(code, ctypes.byref(name))
    library().cuGetErrorString(code, ctypes.byref(text))
    return (name.value or f"CUDA error {code}".encode()).decode(), (text.value or b"unknown error").decode()


def count() -> int:
    number = ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(number))
    return number.value


def attribute(device: int, name: str) -> int:
    """0 where the driver does not know it."""
    value = ctypes.c_int()
    code = library().cuDeviceGetAttribute(ctypes.byref(value), ATTRIBUTES[name], device)
    return value.value if code == SUCCESS else 0


def device_name(device: int) -> str:
    buffer = ctypes.create_string_buffer(256)
    call("cuDeviceGetName", buffer, 256, device)
    return buffer.value.decode()


def uuid(device: int) -> str:
    """32 hexadecimal digits: the same whatever CUDA_VISIBLE_DEVICES makes of the numbers."""
    raw = (ctypes.c_ubyte * 16)()
    call("cuInit", 0)
    call("cuDeviceGetUuid", raw, device)
    return bytes(raw).hex()


def total_memory(device: int) -> int:
    size = ctypes.c_size_t()
    call("cuDeviceTotalMem_v2", ctypes.byref(size), device)
    return size.value


def version() -> str:
    number = ctypes.c_int()
    call("cuDriverGetVersion", ctypes.byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def why_not() -> str | None:
    """None when a GPU can be used from here, else the reason and what to do."""
    try:
        devices = count()
    except OSError:
        return "no NVIDIA driver on this machine (libcuda.so.1 is not found); install it, or use the emulator"
    except DriverError as error:
        return f"the NVIDIA driver does not work: {error}"
    if devices == 0:
        return "the NVIDIA driver sees no GPU"
    if importlib.util.find_spec("cupy") is None:
        major = version().partition(".")[0]
        return f"{devices} GPU here, and cupy is not installed: pip install 'cuda-agent-lsp[cuda{major}]'"
    return None
