"""What only torch can say about this machine, for ``swarmnode doctor``: one JSON object a line.

Each check runs real kernels: that a device is listed does not mean that this build of torch has
code for it. A sandbox without executable memory (``MemoryDenyWriteExecute`` of systemd)
shows in the convolution.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from swarmnode.worker.failures import classify
from swarmnode.worker.runtime import end_with_parent
from swarmnode.worker.sandbox import offered_here

_NVIDIA = Path("/proc/driver/nvidia/version")
_CLOSE = 1e-2


def main() -> int:
    """Print the findings; return the exit status."""
    end_with_parent()
    try:
        for finding in findings():
            print(json.dumps(finding), flush=True)
    except Exception as error:  # noqa: BLE001 -- of one question: its answer says what went wrong
        kind, message = classify(error)
        print(json.dumps({"failed": kind, "message": message}), flush=True)
        return 1
    return 0


def findings() -> Iterator[dict[str, Any]]:
    """Yield what is so, device by device. Raises ModuleNotFoundError without torch."""
    sandbox = _sandbox()  # before there are threads of torch
    import torch

    yield _finding("torch", "OK", f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}")
    yield sandbox
    yield _tried("matmul", torch.device("cpu"), _matmul)
    yield _tried("convolution", torch.device("cpu"), _convolution)
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            yield from _gpu(index)
    elif torch.backends.mps.is_available():
        yield _tried("GPU", torch.device("mps"), _matmul)
    elif _NVIDIA.exists():
        yield _finding(
            "GPU",
            "WARN",
            "this machine has an NVIDIA driver, and torch does not see a GPU",
            "Install a build of torch for CUDA: docs/install.md says how.",
        )
    else:
        yield _finding("GPU", "OK", "none: training runs on the CPU")


def _sandbox() -> dict[str, Any]:
    """Say what a worker would give up here."""
    offered = offered_here()
    is_whole = not offered.no_landlock and not offered.no_seccomp
    advice = "" if is_whole else "docs/threat-model.md says what a task can do without."
    return _finding("sandbox", "OK" if is_whole else "WARN", f"worker: {offered.words}", advice)


def _gpu(index: int) -> Iterator[dict[str, Any]]:
    """Compare what the GPU needs with what this build has, and run a kernel on it."""
    import torch

    name = f"GPU {index}"
    capability = torch.cuda.get_device_capability(index)
    built = torch.cuda.get_arch_list()
    said = f"{torch.cuda.get_device_name(index)}, sm_{capability[0]}{capability[1]}"
    if not has_code_for(capability, built):
        yield _finding(
            name,
            "FAIL",
            f"{said}: this torch has code for {', '.join(built)} only",
            "Install a build of torch for this GPU: docs/install.md says how.",
        )
        return
    free, total = torch.cuda.mem_get_info(index)
    yield _finding(name, "OK", f"{said}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")
    for check in (_matmul, _convolution):
        yield _tried(f"{name} {check.__name__.strip('_')}", torch.device("cuda", index), check)


def has_code_for(capability: tuple[int, int], built: list[str]) -> bool:
    """Whether a build runs on a GPU.

    ``sm_XY`` is machine code for X.Y and later ones of the same X, ``compute_XY`` code that the
    driver compiles for anything from X.Y on. A letter at the end binds it to one chip.
    """
    for arch in built:
        kind, _, number = arch.partition("_")
        digits = number.rstrip("abcdefghijklmnopqrstuvwxyz")
        if not digits.isdecimal():
            continue
        major, minor = int(digits[:-1] or 0), int(digits[-1])
        if digits != number:
            fits = capability == (major, minor)
        elif kind == "compute":
            fits = capability >= (major, minor)
        else:
            fits = capability[0] == major and capability[1] >= minor
        if fits:
            return True
    return False


def _tried(name: str, device: Any, check: Callable[[Any], float]) -> dict[str, Any]:
    try:
        error = check(device)
    except RuntimeError as failure:
        return _finding(name, "FAIL", " ".join(str(failure).split())[:200], _advice(device))
    if not error <= _CLOSE:
        return _finding(name, "FAIL", f"wrong by {error:.2g} on {device}", _advice(device))
    return _finding(name, "OK", f"right on {device}")


def _advice(device: Any) -> str:
    if device.type == "cpu":
        return (
            "Does a sandbox forbid memory that is written and executed (systemd's"
            " MemoryDenyWriteExecute)? Else install torch anew."
        )
    return "Update the driver of the GPU, or install a build of torch for it."


def _matmul(device: Any) -> float:
    """Return by how much a product of matrices is wrong, relative to its size."""
    import torch

    a = torch.linspace(-1, 1, 256 * 256, dtype=torch.float32).reshape(256, 256)
    wanted = a.double() @ a.double().T
    found = a.to(device) @ a.to(device).T
    return _error(found, wanted)


def _convolution(device: Any) -> float:
    """Return by how much a convolution, compiled at run time by oneDNN, is wrong."""
    import torch

    # Large enough for oneDNN: it leaves smaller ones to code that was compiled before.
    image = torch.linspace(-1, 1, 16 * 3 * 32 * 32).reshape(16, 3, 32, 32)
    kernel = torch.linspace(-1, 1, 16 * 3 * 3 * 3).reshape(16, 3, 3, 3)
    patches = torch.nn.functional.unfold(image.double(), 3)  # [16, 27, 900]
    wanted = (kernel.double().reshape(16, 27) @ patches).reshape(16, 16, 30, 30)
    found = torch.nn.functional.conv2d(image.to(device), kernel.to(device))
    return _error(found, wanted)


def _error(found: Any, wanted: Any) -> float:
    return float((found.cpu().double() - wanted).abs().max() / wanted.abs().max())


def _finding(name: str, level: str, said: str, advice: str = "") -> dict[str, Any]:
    return {"check": name, "level": level, "said": said, "advice": advice}


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # torch's teardown takes half a second
