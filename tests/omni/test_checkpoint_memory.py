"""Weights do not pass through host memory file by file, nor stay there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from omni.checkpoint import stream
from omni.checkpoint.shards import WeightSpan
from omni.device.cpu import CpuDevice
from omni.errors import CheckpointError
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.thorough

MB = 2**20
SHARDS, SHARD_MB, WINDOW_MB = 8, 12, 1
LAYERS_PER_SHARD = 6

# Two stages, each with a part of every file. Prints the growth of the process's peak memory in MB, without the pages of libraries
# that are first used meanwhile: the system maps more or fewer of them at once, by 4 MB.
LOAD_TWO_STAGES = f"""
import sys
import torch
from pathlib import Path
from omni.checkpoint import Checkpoint, load_module, stream

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024

def library_pages():
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            counts = ".so" in values[-1]
        elif counts and name == "Rss:":
            total += int(values[0])
    return total / 1024

stream.WINDOW_BYTES = {WINDOW_MB * MB}
torch.set_num_threads(1)
checkpoint = Checkpoint(sys.argv[1])
stages = []
for stage in ("a", "b"):
    names = [name for name in checkpoint.names() if name.startswith(stage)]
    layers = {{name[2:]: torch.nn.Parameter(torch.empty({MB // 2}, dtype=torch.bfloat16)) for name in names}}
    stages.append(torch.nn.ParameterDict(layers))
torch.ones({MB // 2}).bfloat16()
mapped, before = library_pages(), peak()
for stage, module in zip(("a.", "b."), stages):
    load_module(module, checkpoint, {{stage: ""}})
print(peak() - before - (library_pages() - mapped))
assert all(parameter.float().std() > 0.9 for stage in stages for parameter in stage.parameters())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_host_never_holds_more_than_the_model_and_a_few_windows(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    for shard in range(SHARDS):
        values = torch.randn(SHARD_MB * MB // 4, generator=torch.Generator().manual_seed(shard))
        stages = "ab" * (LAYERS_PER_SHARD // 2)
        parts = values.chunk(LAYERS_PER_SHARD)
        weights = {
            f"{stage}.{shard}_{i}": part.clone() for i, (stage, part) in enumerate(zip(stages, parts, strict=True))
        }
        save_file(weights, tmp_path / f"{shard}.safetensors")
        files |= dict.fromkeys(weights, f"{shard}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (tmp_path / "config.json").write_text("{}")
    command = [sys.executable, "-c", LOAD_TWO_STAGES, str(tmp_path)]
    grown = float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS).stdout)
    # The model has half the bytes of its files. Less than a shard is added: weights are read in parts.
    model = SHARDS * SHARD_MB / 2
    assert model * 0.9 < grown < model + SHARD_MB


def span_of(path: Path, tensor: torch.Tensor, start: int = 0) -> WeightSpan:
    return WeightSpan(path, start, start + tensor.nbytes, tensor.dtype, tuple(tensor.shape))


@pytest.mark.parametrize("window", [8, 24, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_any_size_and_place(
    tmp_path: Path, window: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than a window, of different element sizes side by side, with gaps, empty, not in one run of memory."""
    monkeypatch.setattr(stream, "WINDOW_BYTES", window)
    sources = [
        torch.arange(50, dtype=torch.float32).view(10, 5),
        torch.tensor([1, 2, 3], dtype=torch.uint8),
        torch.arange(7, dtype=torch.float64),
        torch.zeros(0, 4),
        torch.arange(12, dtype=torch.bfloat16).view(3, 4),
        torch.tensor(5.0),
    ]
    data, weights = bytearray(), []
    for i, source in enumerate(sources):
        data += bytes(3 * (i % 2))
        shape = source.shape if source.dim() < 2 else source.shape[::-1]
        target = torch.full(shape, -1.0, dtype=dtype)
        weights.append((span_of(tmp_path / "file", source, len(data)), target.T if source.dim() == 2 else target))
        data += source.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    (tmp_path / "file").write_bytes(data)
    stream.stream_weights(weights, CpuDevice())
    for (_, target), source in zip(weights, sources, strict=True):
        assert torch.equal(target, source.to(dtype))


def test_a_file_that_lost_its_end(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(bytes(10))
    target = torch.zeros(4)
    with pytest.raises(CheckpointError, match=r"m\.safetensors: ends 6 bytes before") as caught:
        stream.stream_weights([(span_of(tmp_path / "m.safetensors", target), target)], CpuDevice())
    assert caught.value.field == "m.safetensors"
