"""Encodes pictures and clips of usual sizes with Qwen3-Omni's towers, uncaptured and captured.

    python benchmarks/encoders.py [--shape NAME] [--json FILE]

`host` is the time of the engine's loop for a batch: the plan, copies into pinned memory, launches. `device` is from the first
encoding kernel to the last, `apart` how far the captured outputs are from the others, as a share of the largest value: 0, as both
are padded to the same length. Weights are random.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bench.arguments import device_here, output_file
from bench.device import TimedCuda, TimedDevice, open_timed
from bench.report import environment, print_facts, print_table, write_json
from omni.checkpoint import Checkpoint
from omni.device import Stream, SyncPoint, may_sync
from omni.stage import StageContext
from omni_encoder.batch import BatchEncoder
from omni_encoder.jobs import Outputs
from omni_encoder.model import EncoderModel
from omni_qwen3_omni.encoders import build_audio, build_vision
from omni_qwen3_omni.pipeline import pipeline
from shapes import SHAPES

_ROUNDS = 7


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Batch sizes in embeddings. items: of each tower. captured: the largest first."""

    items: dict[str, tuple[int, ...]]
    captured: tuple[int, ...]


# Pictures of 256 to 1024 pixels a side, clips of 1, 5, 30 and 79 s.
_FULL = BatchSizes(
    {"vision_encoder": (64, 256, 576, 1024), "audio_encoder": (13, 65, 390, 1027)}, (1040, 768, 512, 384, 256, 128, 64)
)
_TINY = BatchSizes({"vision_encoder": (16, 64), "audio_encoder": (13,)}, (64, 32))


@dataclass(frozen=True, slots=True)
class EncoderTimes:
    """Milliseconds, medians."""

    host: float
    device: float
    outputs: Outputs


def load(stage: str, folder: Path, device: TimedDevice) -> EncoderModel:
    checkpoint = Checkpoint(folder)
    node = pipeline(checkpoint).stage(stage)
    dtype = torch.bfloat16 if isinstance(device, TimedCuda) else torch.float32
    context = StageContext(
        stage=node, options=node.options, checkpoint=checkpoint, device=device, dtype=dtype, load_format="dummy"
    )
    if stage == "audio_encoder":
        return build_audio(context)
    model = build_vision(context)
    model.max_pixels = None  # whatever its processor shrinks pictures to
    return model


def measure(device: TimedDevice, encoder: BatchEncoder, stream: Stream, item: Mapping[str, Tensor]) -> EncoderTimes:
    hosts, times = [], []
    for _ in range(_ROUNDS + 2):
        began = time.perf_counter()
        batch = encoder.prepare([item])
        while not batch.transfer.finished:
            encoder.send(batch)
        start = device.mark(stream)
        encoded = encoder.launch(batch)
        hosts.append((time.perf_counter() - began) * 1e3)
        end = device.mark(stream)
        device.synchronize()
        if isinstance(start, int):
            assert isinstance(end, int)
            times.append((end - start) / 1e6)
        else:
            assert not isinstance(end, int)
            times.append(start.elapsed_time(end))
    return EncoderTimes(statistics.median(hosts[2:]), statistics.median(times[2:]), encoded.outputs[0])


def apart(captured: Outputs, plain: Outputs) -> float:
    return max(float((captured[name] - tensor).abs().max() / tensor.abs().max()) for name, tensor in plain.items())


def run(stage: str, folder: Path, device: TimedDevice, sizes: BatchSizes) -> list[dict[str, object]]:
    model = load(stage, folder, device)
    rows: list[dict[str, object]] = []
    stream, streams = device.stream(stage), device.stream(stage)
    plain, captured = (BatchEncoder(device, one, model, sizes.captured) for one in (stream, streams))
    began = time.perf_counter()
    captured.capture(sizes.captured)
    print(f"{stage}: {len(sizes.captured)} batches captured in {time.perf_counter() - began:.1f} s")
    for length in sizes.items[stage]:
        sample = model.largest_item(length)
        item = {name: torch.rand_like(t) if t.is_floating_point() else t for name, t in sample.features.items()}
        one, other = measure(device, plain, stream, item), measure(device, captured, streams, item)
        rows.append(
            {
                "tower": stage,
                "embeddings": sample.length,
                "host ms": one.host,
                "device ms": one.device,
                "captured host ms": other.host,
                "captured device ms": other.device,
                "apart": apart(other.outputs, one.outputs),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", type=device_here("--tiny --device cpu"), choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-omni-30b")
    parser.add_argument("--tiny", action="store_true", help="the tiny shape, small items: to see that it runs")
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    device = open_timed(arguments.device)
    with tempfile.TemporaryDirectory() as name, torch.inference_mode(), may_sync(SyncPoint.MEASURE):
        folder = Path(name) / "model"
        SHAPES["tiny-omni" if arguments.tiny else arguments.shape](folder)
        sizes = _TINY if arguments.tiny else _FULL
        rows = [row for stage in sizes.items for row in run(stage, folder, device, sizes)]
    print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    print_facts(environment())
    write_json(arguments.json, rows, environment())


if __name__ == "__main__":
    main()
