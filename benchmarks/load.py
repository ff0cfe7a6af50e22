"""Speed and host memory of loading weights from a sharded checkpoint to the device.

    python benchmarks/load.py --gigabytes 12 --shard 2

Writes a checkpoint of random bf16 matrices to a temporary folder, so its files are in the page cache when they are read.
"""

import argparse
import json
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from bench.arguments import device_here, positive_float
from bench.report import environment, print_facts
from omni.checkpoint import Checkpoint, load_module
from omni.device import open_device

_WIDTH = 2048
_MATRIX_BYTES = 2 * _WIDTH * _WIDTH


def host_peak() -> int:
    """Bytes: the most that this process has had resident."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def write_checkpoint(folder: Path, shards: int, matrices: int) -> list[str]:
    """The names of its weights."""
    files: dict[str, str] = {}
    for shard in range(shards):
        weights = {f"{shard}_{i}": torch.empty(_WIDTH, _WIDTH, dtype=torch.bfloat16) for i in range(matrices)}
        for weight in weights.values():
            # Any bits but the highest of the exponent: all numbers are finite.
            weight.view(torch.int16).random_().bitwise_and_(~0x4000)
        save_file(weights, folder / f"{shard}.safetensors")
        files |= dict.fromkeys(weights, f"{shard}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (folder / "config.json").write_text("{}")
    return list(files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=positive_float, default=12.0)
    parser.add_argument("--shard", type=positive_float, default=2.0, help="GB of each file")
    parser.add_argument(
        "--device", type=device_here("--device cpu"), help="the first CUDA device if there is one, else the CPU"
    )
    arguments = parser.parse_args()
    device = open_device(arguments.device)
    if arguments.shard > arguments.gigabytes:
        parser.error(
            f"argument --shard: {arguments.shard:g} GB of each file are more than --gigabytes {arguments.gigabytes:g}"
        )
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if arguments.gigabytes * 1e9 > free:
        parser.error(
            f"argument --gigabytes: {arguments.gigabytes:g} do not fit into {free / 1e9:.1f} of {tempfile.gettempdir()}"
        )
    matrices = max(1, int(arguments.shard * 1e9 / _MATRIX_BYTES))
    shards = max(1, round(arguments.gigabytes / arguments.shard))
    with tempfile.TemporaryDirectory() as folder:
        names = write_checkpoint(Path(folder), shards, matrices)
        empty = partial(torch.empty, _WIDTH, _WIDTH, dtype=torch.bfloat16, device=device.torch_device)
        module = nn.ParameterDict({name: nn.Parameter(empty()) for name in names})
        for attempt in ("first", "again"):
            forget_peak()
            before = host_peak()
            start = time.perf_counter()
            load_module(module, Checkpoint(folder), device=device)
            seconds = time.perf_counter() - start
            gigabytes = len(names) * _MATRIX_BYTES / 1e9
            print(
                f"{attempt}: {gigabytes:.1f} GB in {shards} files, {seconds:.2f} s, {gigabytes / seconds:.1f} GB/s; host peak "
                f"{host_peak() / 1e9:.2f} GB, {(host_peak() - before) / 1e9:.2f} GB above what it was (a file: "
                f"{matrices * _MATRIX_BYTES / 1e9:.2f} GB)"
            )
    print_facts(environment())


if __name__ == "__main__":
    main()
