"""What a device is: the numbers that occupancy, physics (G11) and timing need, and a table of GPUs for the emulator.

Sources: CUDA C++ Programming Guide, "Compute Capabilities" (limits per architecture); NVIDIA data sheets (bandwidth,
clocks).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device. Bytes, MHz and GB/s (10^9 bytes a second); `arch` is nvcc's spelling ("sm_90")."""

    name: str
    kind: Literal["cuda", "emulator"]
    arch: str
    sms: int
    memory_bandwidth_gbs: float  # peak
    memory_bytes: int
    l2_bytes: int
    clock_mhz: float  # SM clock, boost
    shared_per_block: int  # without opting in
    shared_per_block_optin: int
    shared_per_sm: int
    registers_per_block: int
    registers_per_sm: int
    threads_per_block: int = 1024
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32
    warp_size: int = 32
    driver: str = ""  # "13.0", empty on the emulator
    index: int = 0
    uuid: str = ""  # empty where there is no GPU

    def peak_flops(self, kind: Literal["f32", "f64"]) -> float:
        """Floating-point operations a second without tensor cores: SMs x lanes x 2 (fused multiply-add) x clock."""
        f32, f64 = _LANES.get(self.arch.removeprefix("sm_").rstrip("af"), (128, 2))
        return self.sms * (f32 if kind == "f32" else f64) * 2 * self.clock_mhz * 1e6

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DeviceInfo:
        """Unknown keys are dropped, so that a newer worker can talk to an older client."""
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in data.items() if k in known})


# f32 and f64 results per clock per SM, by compute capability (Programming Guide, "Arithmetic Instructions").
_LANES = {
    "70": (64, 32),
    "75": (64, 2),
    "80": (64, 32),
    "86": (128, 2),
    "87": (128, 2),
    "89": (128, 2),
    "90": (128, 64),
    "100": (128, 64),
    "103": (128, 2),
    "120": (128, 2),
}

KIB, MIB, GIB = 1024, 1024**2, 1024**3


def _gpu(
    name: str, arch: str, sms: int, gbs: float, memory: int, l2: int, mhz: float, optin: int, per_sm: int, threads: int
) -> DeviceInfo:
    return DeviceInfo(
        name=name,
        kind="cuda",
        arch=arch,
        sms=sms,
        memory_bandwidth_gbs=gbs,
        memory_bytes=memory * GIB,
        l2_bytes=l2 * MIB,
        clock_mhz=mhz,
        shared_per_block=48 * KIB,
        shared_per_block_optin=optin * KIB,
        shared_per_sm=per_sm * KIB,
        registers_per_block=65536,
        registers_per_sm=65536,
        threads_per_sm=threads,
        blocks_per_sm={"sm_75": 16, "sm_86": 16, "sm_89": 24}.get(arch, 32),
    )


# Data-sheet numbers; the key is what `emulator:KEY` takes.
GPUS: dict[str, DeviceInfo] = {
    "h200": _gpu("NVIDIA H200", "sm_90", 132, 4800.0, 141, 60, 1980, 227, 228, 2048),
    "h100": _gpu("NVIDIA H100 80GB HBM3", "sm_90", 132, 3350.0, 80, 50, 1980, 227, 228, 2048),
    "a100": _gpu("NVIDIA A100-SXM4-80GB", "sm_80", 108, 2039.0, 80, 40, 1410, 163, 164, 2048),
    "l40s": _gpu("NVIDIA L40S", "sm_89", 142, 864.0, 48, 96, 2520, 99, 100, 1536),
    "l4": _gpu("NVIDIA L4", "sm_89", 58, 300.0, 24, 48, 2040, 99, 100, 1536),
    "rtx4090": _gpu("NVIDIA GeForce RTX 4090", "sm_89", 128, 1008.0, 24, 72, 2520, 99, 100, 1536),
    "rtx3090": _gpu("NVIDIA GeForce RTX 3090", "sm_86", 82, 936.0, 24, 6, 1695, 99, 100, 1536),
    "t4": _gpu("Tesla T4", "sm_75", 40, 320.0, 16, 4, 1590, 64, 64, 1024),
    "v100": _gpu("Tesla V100-SXM2-32GB", "sm_70", 80, 900.0, 32, 6, 1530, 96, 96, 2048),
    "b200": _gpu("NVIDIA B200", "sm_100", 148, 8000.0, 180, 126, 1965, 227, 228, 2048),
}


def bandwidth_of(name: str, memory_clock_khz: int, bus_bits: int) -> float:
    """Peak GB/s: 2 x memory clock x bus width / 8 (double data rate); a data-sheet number where the driver reports no
    clock (newer drivers answer 0), and 0.0 when neither is known."""
    if memory_clock_khz > 0 and bus_bits > 0:
        return 2.0 * memory_clock_khz * 1e3 * bus_bits / 8 / 1e9
    gpu = _known(name)
    return gpu.memory_bandwidth_gbs if gpu else 0.0


def clock_of(name: str) -> float:
    """Boost clock in MHz from the data sheet, for drivers that report none; 0.0 when the GPU is not in the table."""
    gpu = _known(name)
    return gpu.clock_mhz if gpu else 0.0


def gpu(name: str, arch: str) -> DeviceInfo | None:
    """The GPU of the table with that name, else one of that architecture; None when there is neither."""
    plain = arch.rstrip("af")
    return _known(name) or next((known for known in GPUS.values() if known.arch == plain), None)


def _known(name: str) -> DeviceInfo | None:
    wanted = name.lower().replace("nvidia", "").replace(" ", "")
    return next((gpu for key, gpu in GPUS.items() if key in wanted or gpu.name.lower() == name.lower()), None)
