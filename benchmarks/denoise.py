"""A diffusion stage by itself: streams that begin together and whose codes are all there.

    python benchmarks/denoise.py MODEL --load-format dummy --device cuda --rows 1 4 16 --frames 500
    python benchmarks/denoise.py MODEL --before 0 --after 1 --first 1 --chunk 4 --json FILE

MODEL: a checkpoint whose pipeline has a stage of kind "diffusion". Codes are random, and so are weights with `--load-format dummy`.
Per number of streams, of three rounds behind a first the median by real-time factor: milliseconds until a stream's first samples
(mean over the streams), milliseconds of the whole per step of the solver, the real-time factor (seconds until the last sample over
seconds of sound of one stream), and seconds of sound made per second by all of them.
"""

import argparse
import statistics
import time
from dataclasses import asdict, dataclass

import msgspec
import torch

from bench.arguments import at_least, device_here, output_file, positive_int
from bench.report import environment, print_facts, print_table, write_json
from omni.checkpoint import Checkpoint, resolve
from omni.device import COMPLETED, Device, SyncPoint, may_sync, open_device
from omni.engine import resolve_pipeline
from omni.payload import AudioChunk, Payload
from omni.plugin.manager import load_plugins
from omni.sampling import SamplingParams
from omni.stage import Done, Ended, Failed, Feed, Open, Produced, StageContext
from omni_diffusion.inputs import Voice
from omni_diffusion.kind import DiffusionStageKind
from omni_diffusion.options import DiffusionOptions
from omni_diffusion.worker import DiffusionWorker
from omni_frames.request import CodeFrames

ROUNDS = 3
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class DenoiseRound:
    streams: int
    first_ms: float
    step_ms: float
    rtf: float
    sound_per_second: float


class DenoiserBench:
    """Codes are in pinned memory: they are copied without waiting, as a producer's pages are."""

    def __init__(self, given: argparse.Namespace, device: Device, rows: int) -> None:
        checkpoint = Checkpoint(resolve(given.model))
        plan = resolve_pipeline(checkpoint, load_plugins())
        stage = next(stage for stage in plan.pipeline.stages if stage.kind == "diffusion")
        names = ("first_chunk_blocks", "chunk_blocks", "blocks_before", "blocks_after", "num_steps")
        values = (given.first, given.chunk, given.before, given.after, given.steps)
        chosen = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        assert isinstance(stage.options, DiffusionOptions)
        chosen |= {"max_num_seqs": rows, "graph_batch_sizes": None, "tf32": not given.full_float32}
        options = msgspec.structs.replace(stage.options, **chosen)
        context = StageContext(
            stage=stage,
            options=options,
            checkpoint=checkpoint,
            device=device,
            dtype=DTYPES[given.dtype],
            load_format=given.load_format,
            graphs=not given.eager,
        )
        loaded = DiffusionStageKind().load(context)
        self.worker: DiffusionWorker = loaded.start(0)
        with may_sync(SyncPoint.MEASURE):
            device.synchronize()
        groups = loaded.model.num_groups
        codes = torch.randint(given.codes, (rows, given.frames, groups), generator=torch.Generator().manual_seed(0))
        self._codes = codes.pin_memory() if device.torch_device.type == "cuda" else codes

    def round(self, streams: int) -> DenoiseRound:
        before = self.worker.counters()["steps"]
        start = time.perf_counter()
        for index, codes_NG in enumerate(self._codes[:streams]):
            name = str(index)
            frames = Payload(CodeFrames(count=len(codes_NG)), {"codes": codes_NG})
            self.worker.inbox.append(Open(name, SamplingParams(seed=index), frozenset(["frontend"]), order=(0, index)))
            self.worker.inbox.append(Feed(name, Payload(Voice(index=0)), COMPLETED))
            self.worker.inbox.append(Feed(name, frames, COMPLETED))
            self.worker.inbox.append(Ended(name, "frontend"))
        firsts: dict[str, float] = {}
        seconds, over = 0.0, 0
        while over < streams:
            self.worker.tick()
            while self.worker.outbox:
                match self.worker.outbox.popleft():
                    case Produced(request_id=name, payload=Payload(meta=AudioChunk() as chunk)):
                        firsts.setdefault(name, time.perf_counter() - start)
                        seconds += len(chunk.samples) / chunk.sample_rate
                    case Done():
                        over += 1
                    case Failed(error=error):
                        raise error
        took = time.perf_counter() - start
        steps = self.worker.counters()["steps"] - before
        return DenoiseRound(
            streams,
            statistics.mean(firsts.values()) * 1e3,
            took / steps * 1e3,
            took / (seconds / streams),
            seconds / took,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rows", type=positive_int, nargs="+", default=[1, 4, 16], help="streams at once")
    parser.add_argument("--frames", type=positive_int, default=500, help="code frames of each")
    parser.add_argument("--codes", type=positive_int, default=64, help="codes are drawn below this")
    for name, least in (("first", 1), ("chunk", 1), ("before", 0), ("after", 0)):
        parser.add_argument(f"--{name}", type=at_least(least), help="blocks; the family's by default")
    parser.add_argument("--steps", type=positive_int, help="of the solver; the model's by default")
    parser.add_argument("--eager", action="store_true", help="capture nothing")
    parser.add_argument("--device", type=device_here("--device cpu"), default="cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--full-float32", action="store_true", help="no TF32")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    given = parser.parse_args()
    with torch.inference_mode():
        began = time.perf_counter()
        bench = DenoiserBench(given, open_device(given.device), max(given.rows))
        print(f"loaded and captured in {time.perf_counter() - began:.1f} s", flush=True)
        rounds = []
        for streams in given.rows:
            of_size = [bench.round(streams) for _ in range(ROUNDS + 1)][1:]
            rounds.append(sorted(of_size, key=lambda one: one.rtf)[len(of_size) // 2])
    rows = [asdict(one) for one in rounds]
    print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    print_facts(environment())
    write_json(given.json, rows, environment())


if __name__ == "__main__":
    main()
