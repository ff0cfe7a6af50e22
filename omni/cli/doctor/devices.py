"""Processors and their memory."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from omni.cli.doctor.check import Finding, last_line, ok, problem, warning

_GROUP = "devices"
_GIB = 2**30
_MEMORY = Path("/proc/meminfo")
_CONTROL_GROUP = Path("/sys/fs/cgroup")


def check_devices() -> Iterator[Finding]:
    total, free = host_memory()
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    yield ok(_GROUP, "cpu", f"{cores} cores, {gib(free)} of {gib(total)} free")
    count = torch.cuda.device_count()
    for index in range(count):
        yield _cuda(index)
    if count:
        return
    if torch.version.cuda is not None:
        detail = f"torch {torch.__version__} is built for CUDA {torch.version.cuda}, but finds no device"
        yield warning(_GROUP, "cuda", detail, "check the driver with nvidia-smi, and CUDA_VISIBLE_DEVICES")
    else:
        yield ok(_GROUP, "cuda", "torch is built for the CPU only")


def _cuda(index: int) -> Finding:
    name = f"cuda:{index}"
    try:
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        return problem(_GROUP, name, last_line(error), "check with nvidia-smi which processes use it")
    return ok(_GROUP, name, f"{torch.cuda.get_device_name(index)}, {gib(free)} of {gib(total)} free")


def host_memory() -> tuple[int, int]:
    """Total and available bytes, of the machine or of the process's control group if that has less. Without numbers, all memory
    counts as available."""
    if not _MEMORY.is_file():
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return total, total
    sizes = dict(line.split(":") for line in _MEMORY.read_text().splitlines())
    total, free = (int(sizes[key].removesuffix("kB")) * 1024 for key in ("MemTotal", "MemAvailable"))
    limit, used = (_group_bytes(name) for name in ("memory.max", "memory.current"))
    if limit is not None and limit < total:
        total, free = limit, min(free, limit - (used or 0))
    return total, free


def _group_bytes(name: str) -> int | None:
    file = _CONTROL_GROUP / name
    text = file.read_text().strip() if file.is_file() else ""
    return int(text) if text.isdecimal() else None


def gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
