"""What a model is told first: a skill, a page on the GPU's architecture, and the numbers of the device itself.

They are files, for people to read and to change; `digest` names their version in every trajectory."""

from __future__ import annotations

import hashlib
import re
from importlib import resources

from cuda_agent.agent.models import Call, Message
from cuda_agent.device import DeviceInfo

KIB, MIB = 1 << 10, 1 << 20


def system(device: DeviceInfo | None) -> str:
    """The system message."""
    return "\n\n".join(part.strip() for part in (_file("skill.md"), *_device(device)) if part)


def digest() -> str:
    """sha256 of all files, first 12 digits."""
    names = sorted(item.name for item in resources.files(__name__).iterdir() if item.name.endswith(".md"))
    return hashlib.sha256("\0".join(_file(name) for name in names).encode()).hexdigest()[:12]


def example() -> tuple[Message, ...]:
    """One worked exchange: models that see none often make no call at all."""
    code = (
        "__global__ void scale(float *x, float a, int n) {\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    for (; i < n; i += gridDim.x * blockDim.x) x[i] *= a;\n}"
    )
    launch = Call("launch", {"grid": ["ceil_div(gx, 4)"]}, "example-1")
    replace = Call("replace_kernel", {"code": code, "why": "fewer blocks, several elements a thread"}, "example-2")
    verify = Call("verify", {}, "example-3")
    return (
        Message("user", "An example. Kernel `scale` is limited by latency: one element a thread."),
        Message("assistant", "Fewer, longer threads.", (replace,)),
        Message("tool", "done; verify judges it", call="example-2", tool="replace_kernel"),
        Message("assistant", "", (launch,)),
        Message("tool", "every launch was changed; they become <<<1024, 256>>>", call="example-1", tool="launch"),
        Message("assistant", "", (verify,)),
        Message("tool", "right; 1.310x [1.302, 1.318] of the original's speed (the best so far)",
                call="example-3", tool="verify"),
    )  # fmt: skip


def _device(device: DeviceInfo | None) -> list[str]:
    if device is None:
        return []
    return [_file(_page(device.arch)), _numbers(device)]


def _page(arch: str) -> str:
    """The newest page that is not newer than the architecture."""
    number = int(re.sub(r"\D", "", arch) or 0)
    known = sorted(
        int(item.name[3:-3]) for item in resources.files(__name__).iterdir() if re.fullmatch(r"sm_\d+\.md", item.name)
    )
    return f"sm_{max((one for one in known if one <= number), default=known[0])}.md"


def _numbers(device: DeviceInfo) -> str:
    where = f"The device: {device.name}, {device.arch}"
    if device.kind == "emulator":
        where += " (emulated here: results are checked and memory traffic is counted, nothing is timed)"
    return (
        f"{where}. {device.sms} multiprocessors at {device.clock_mhz:.0f} MHz, {device.memory_bandwidth_gbs:.0f} GB/s, "
        f"{device.l2_bytes / MIB:.0f} MiB of L2, {device.registers_per_sm} registers and {device.threads_per_sm} "
        f"threads a multiprocessor, {device.shared_per_block / KIB:.0f} KiB of shared memory a block "
        f"({device.shared_per_sm / KIB:.0f} a multiprocessor), FP32 {device.peak_flops('f32') / 1e12:.1f} TFLOP/s."
    )


def _file(name: str) -> str:
    return (resources.files(__name__) / name).read_text(encoding="utf-8")
