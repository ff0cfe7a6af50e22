"""The released Qwen3-Omni-30B-A3B shape, dummy weights, end to end on one GPU, uncaptured: that it answers, and how fast.

    python benchmarks/released_eager.py [--tokens 64] [--frames 250] [--concurrency 1 4]

Weights are random, so lengths are fixed by limits: the thinker samples `tokens` tokens, the talker `frames` frames. Prints time to
first token, first-audio latency, real-time factor and tokens per second of each stage for the first request of each group.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

from omni import Omni, Result, SamplingParams

from released_shape import write_released_shape  # isort: skip  (the script's own folder)


def ask(omni: Omni, requests: int, tokens: int, frames: int) -> tuple[list[Result], float]:
    """`requests` equal prompts at once, and the seconds until all were answered."""
    sampling = {
        "thinker": SamplingParams(max_tokens=tokens, temperature=1.0, seed=1),
        "talker": SamplingParams(max_tokens=frames + 1, seed=1),
    }
    chats = [f"Tell me about the number {index}." for index in range(requests)]
    start = time.perf_counter()
    results = omni.generate(chats, modalities=("text", "audio"), sampling=sampling, stream=False)
    assert isinstance(results, list)
    return results, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--frames", type=int, default=250)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_released_shape(Path(folder))
        start = time.perf_counter()
        with Omni(folder, device="cuda", load_format="dummy") as omni:
            memory = torch.cuda.memory_allocated() / 2**30
            print(f"{torch.cuda.get_device_name()}: loaded in {time.perf_counter() - start:.1f} s, {memory:.1f} GiB")
            ask(omni, 1, 4, 12)
            for requests in arguments.concurrency:
                results, seconds = ask(omni, requests, arguments.tokens, arguments.frames)
                metrics = results[0].metrics
                spoken = sum(result.metrics.audio_seconds for result in results)
                print(f"{requests} at once: {seconds:.1f} s, {spoken / seconds:.2f} seconds of audio per second")
                print(f"  TTFT {metrics.ttft:.3f} s, first audio {metrics.first_audio:.3f} s, RTF {metrics.rtf:.3f}")
                for name, stage in metrics.stages.items():
                    print(f"  {name}: {dict(stage.counts)} in {stage.seconds:.2f} s")


if __name__ == "__main__":
    main()
