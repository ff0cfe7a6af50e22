"""The server's own cost of compressed sound, with encoders in its threads and in processes of their own.

    python benchmarks/sound_files.py [--formats mp3 opus] [--processes 0 4] [--streams 16] [--chunk 2.0] [--json FILE]

`--streams` answers of `--seconds` each, a modulated tone with noise, are written in chunks of `--chunk` seconds at the same time,
as fast as they can be, by the classes of `omni serve`: samples to base64 in the slices of chats. Per second of speech: CPU time of
this process, which is the server's; switches of its threads that wait, for the interpreter lock or for a process; and elapsed time.
The event loop's delay is the lateness of a timer of 2 ms, 99th percentile.
"""

import argparse
import asyncio
import resource
import time
from dataclasses import asdict, dataclass
from typing import cast

import numpy as np
import torch

from bench.arguments import at_least, output_file, positive_float, positive_int
from bench.report import environment, print_facts, print_table, write_json
from omni.serve.audio.encode import FORMATS, PCM_RATE
from omni.serve.audio.encoder_pool import EncoderPool
from omni.serve.chat.speech import AnswerSound

_TIMER = 0.002


@dataclass(frozen=True, slots=True)
class FileRun:
    """Of one second of speech: milliseconds of CPU time and elapsed, and switches. late_ms: see above. bytes: of one answer, in
    base64."""

    format: str
    processes: int
    cpu_ms: float
    elapsed_ms: float
    switches: float
    late_ms: float
    bytes: int


def speech(seconds: int) -> torch.Tensor:
    time_n = np.arange(seconds * PCM_RATE) / PCM_RATE
    tone_n = 0.15 * np.sin(2 * np.pi * 220 * time_n) * (1 + np.sin(2 * np.pi * 3 * time_n))
    noise_n = 0.02 * np.random.default_rng(0).normal(size=len(time_n))
    return torch.from_numpy((tone_n + noise_n).astype(np.float32))


async def write(format: str, pool: EncoderPool, samples: torch.Tensor, chunk: int) -> int:
    sound = AnswerSound(format, pool)
    pieces = [await sound.push(part, PCM_RATE) for part in samples.split(chunk)]
    return len("".join(pieces) + await sound.finish())


async def watch(late: list[float]) -> None:
    while True:
        before = time.perf_counter()
        await asyncio.sleep(_TIMER)
        late.append(time.perf_counter() - before - _TIMER)


async def measure(format: str, processes: int, streams: int, samples: torch.Tensor, chunk: int) -> FileRun:
    pool = EncoderPool(processes)
    pool.start()
    # Every process has imported its libraries.
    await asyncio.gather(*(write(format, pool, samples[:chunk], chunk) for _ in range(max(1, processes))))
    late: list[float] = []
    watching = asyncio.create_task(watch(late))
    await asyncio.sleep(0)
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    written = await asyncio.gather(*(write(format, pool, samples, chunk) for _ in range(streams)))
    elapsed, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(2 * _TIMER)
    watching.cancel()
    await pool.close()
    seconds = streams * len(samples) / PCM_RATE
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return FileRun(
        format,
        processes,
        1000 * used / seconds,
        1000 * elapsed / seconds,
        (after.ru_nvcsw - before.ru_nvcsw) / seconds,
        1000 * float(np.percentile(late, 99)),
        written[0],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    compressed = [name for name, format in FORMATS.items() if format.compressed]
    parser.add_argument("--formats", nargs="+", choices=compressed, default=compressed)
    parser.add_argument("--processes", nargs="+", type=at_least(0), default=[0, 4], help="0: threads of this process")
    parser.add_argument("--streams", type=positive_int, default=16)
    parser.add_argument("--seconds", type=positive_int, default=20)
    parser.add_argument("--chunk", type=positive_float, default=2.0, help="seconds")
    parser.add_argument("--json", type=output_file)
    arguments = parser.parse_args()
    samples, chunk = speech(arguments.seconds), max(1, round(cast(float, arguments.chunk) * PCM_RATE))
    facts = environment()
    runs = [
        asyncio.run(measure(format, processes, arguments.streams, samples, chunk))
        for format in arguments.formats
        for processes in arguments.processes
    ]
    header = ("format", "processes", "CPU ms", "elapsed ms", "switches", "loop late p99 ms")
    print_table(
        header,
        [
            (r.format, r.processes, f"{r.cpu_ms:.2f}", f"{r.elapsed_ms:.2f}", f"{r.switches:.0f}", f"{r.late_ms:.1f}")
            for r in runs
        ],
    )
    print_facts(facts)
    write_json(arguments.json, [asdict(run) for run in runs], facts)


if __name__ == "__main__":
    main()
