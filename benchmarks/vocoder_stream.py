"""Cost of a vocoder chunk as a stream grows: it should be flat in the frames so far.

    python benchmarks/vocoder_stream.py
    python benchmarks/vocoder_stream.py --shape released --frames 300
    python benchmarks/vocoder_stream.py --shape released --device cuda --dtype bfloat16 --rows 8

Weights and codes are random. Prints the median time of a chunk over the first, middle and last third of the stream, the
ratio of last to first, and the real-time factor: time to decode a second of sound of one row.
"""

import argparse
import statistics
import time

import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig

from bench.arguments import device_here, positive_int
from omni.checkpoint.checks import Section
from omni_qwen3_omni.code2wav import Code2Wav
from omni_vocoder.layers import window_shape

FRAMES_PER_SECOND = 12.5
WARM_UP_CHUNKS = 3
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SHAPES = {
    "tiny": Qwen3OmniMoeCode2WavConfig(
        codebook_size=64,
        num_quantizers=4,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=16,
        decoder_dim=64,
    ),
    "released": Qwen3OmniMoeCode2WavConfig(),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--frames", type=positive_int, default=3000)
    parser.add_argument("--chunk", type=positive_int, default=10, help="frames per chunk")
    parser.add_argument("--rows", type=positive_int, default=1, help="streams decoded together")
    parser.add_argument("--device", type=device_here("--device cpu"), default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    given = parser.parse_args()
    if given.frames < 3 * given.chunk:
        parser.error("--frames: needs at least 3 chunks, one for each third")
    return given


def chunk_seconds(model: Code2Wav, device: torch.device, given: argparse.Namespace) -> list[float]:
    """Time of every chunk but the first (which is shorter), each from launch to its last sample."""
    state = model.new_state(given.rows)
    rows = torch.arange(given.rows, device=device)
    codes = torch.randint(model.codebook_size, (given.rows, given.chunk, model.num_groups), device=device)
    seconds = []
    for index in range(given.frames // given.chunk + 1):
        start = time.perf_counter()
        model.decode(codes, state, rows, first=index == 0)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def main() -> None:
    given = arguments()
    device, dtype = torch.device(given.device), DTYPES[given.dtype]
    torch.manual_seed(0)
    config = Section(SHAPES[given.shape].to_dict())
    model = Code2Wav(config, window_shape(config)).to(device, dtype)
    warm_up = argparse.Namespace(**vars(given) | {"frames": WARM_UP_CHUNKS * given.chunk})
    chunk_seconds(model, device, warm_up)
    seconds = chunk_seconds(model, device, given)

    third = len(seconds) // 3
    first, middle, last = (
        statistics.median(part) * 1e3 for part in (seconds[:third], seconds[third:-third], seconds[-third:])
    )
    state_mb = given.rows * model.layout.width * dtype.itemsize / 1e6
    rtf = statistics.median(seconds) / (given.chunk * given.rows / FRAMES_PER_SECOND)
    print(f"{given.shape}, {given.frames} frames in chunks of {given.chunk}, {given.rows} row(s), {device}, {dtype}")
    print(f"median ms per chunk: first third {first:.2f}, middle {middle:.2f}, last {last:.2f}")
    print(f"last / first {last / first:.3f}; real-time factor {rtf:.4f}; carried state {state_mb:.2f} MB")


if __name__ == "__main__":
    main()
