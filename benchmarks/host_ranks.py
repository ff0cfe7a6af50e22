"""Host work of `Runner.sample_tokens` at the rank with the last layer range of a stage, and on one device.

    python benchmarks/host_ranks.py [--rows 64] [--ranges 1 2 4] [--drafts 0] [--steps 1000] [--json FILE]

A stage decodes `--rows` rows in captured steps, in as many micro-batches as it has layer ranges. Each step verifies `--drafts`
drafts of each row, none of which is accepted; their drafter does nothing. The device is `CudaDevice` with streams, events, graphs
and a process group that do nothing: the work of the driver and of NCCL is left out, and Python runs as on CUDA. Torch operations of
launched phases run on the CPU. Each case is repeated while a timeline records. A graph is captured phase by phase then.

Counted of one step: calls of Python and of C functions, torch operations that launch kernels, and calls of the driver: graphs,
events, waits, changes of torch's stream, transfers of NCCL. CPU: microseconds of the thread, the median.
"""

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from unittest.mock import patch

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.arguments import at_least, output_file, positive_int
from bench.report import environment, print_facts, print_table, write_json
from host_step import ask, tick
from omni.device import Launch, Stream
from omni.device.base import Device, Graph, Phase
from omni.device.cuda import CudaDevice, CudaGraph, CudaStream, CudaTimer
from omni.parallel import EqualRanks, PipelineRank, Ranks, SilentCommunicator
from omni.parallel.silent import SilentChannel
from omni.parallel.torch_group import NcclCommunicator, TorchCommunicator, names_of
from omni.timeline import Timeline
from omni_ar.attention import TorchPagedAttention
from omni_ar.drafters import Drafter, DraftRows
from omni_ar.kernels.step.draft_state import RATE_ONE
from omni_ar.kernels.step.handoff import GAIN, NUM_TOKENS
from omni_ar.layers.decoder import DecoderConfig
from omni_ar.layers.parallel import LayerRange, partitioned
from omni_ar.layers.text_model import TextModel
from omni_ar.options import MAX_DRAFTS, ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.runner import Runner
from omni_ar.run.step import SampledStep, StepContext
from omni_ar.run.worker import ArWorker

DRIVER = ("kernels", "graphs", "events", "waits", "streams", "transfers")
_LAYERS = 4
_LAUNCHED = ("gather_codes", "gather_columns", "post_tensors")
"""Phases that `sample_tokens` launches outside of graphs. All others do nothing."""

driver = Counter[str]()


class _Raw:
    """In place of torch's streams and events."""

    cuda_stream = 0

    def __init__(self, enable_timing: bool = False) -> None: ...

    def record(self, stream: object = None) -> None:
        driver["events"] += 1

    def query(self) -> bool:
        return True

    def wait_event(self, event: object) -> None:
        driver["waits"] += 1

    def elapsed_time(self, other: object) -> float:
        return 0.0


class _RawGraph:
    def replay(self) -> None:
        driver["graphs"] += 1


class _NoGroup:
    """In place of a process group, and of the work that it returns."""

    def send(self, *given: object) -> "_NoGroup":
        driver["transfers"] += 1
        return self

    recv = broadcast = send

    def wait(self) -> None:
        driver["waits"] += 1


def _set_stream(stream: object) -> None:
    driver["streams"] += 1


def _skipped(*buffers: object) -> None: ...


class _NoCuda(CudaDevice):
    """`CudaDevice` in host memory."""

    def __init__(self) -> None:
        Device.__init__(self, torch.device("cpu"))
        self.entered = _Raw()  # type: ignore[assignment]

    def stream(self, name: str, *, priority: int = 0) -> CudaStream:
        return CudaStream(name, _Raw(), None)  # type: ignore[arg-type]

    def capture(self, stream: Stream, name: str, launches: Sequence[Launch]) -> Graph:
        parts = tuple((part, _RawGraph()) for part, _ in self._parts(name, launches))
        return CudaGraph(name, launches, None, parts)  # type: ignore[arg-type]

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        super().launch(stream, phase if phase.__name__ in _LAUNCHED else _skipped, *buffers)

    def timer(self) -> CudaTimer:
        return _Timer()

    host_tensor, shared = Device.host_tensor, Device.shared

    def synchronize(self) -> None: ...


class _Timer(CudaTimer):
    def __init__(self) -> None:
        self._raw_of = lambda stream: stream.raw  # type: ignore[attr-defined]
        self._pool = []

    def probe(self):  # type: ignore[no-untyped-def]
        return self.stamp(CudaStream("idle", _Raw(), None)), time.perf_counter_ns(), time.perf_counter_ns()  # type: ignore[arg-type]


@contextmanager
def no_cuda() -> Iterator[None]:
    with patch.object(torch.cuda, "Event", _Raw), patch.object(torch.cuda, "set_stream", _set_stream):
        yield


def last_rank(ranges: int) -> Ranks | None:
    """Rank 0 of a stage with so many layer ranges."""
    if ranges == 1:
        return None
    names, position = names_of(range(ranges), ranges), ranges - 1
    hidden, tokens = NcclCommunicator.__new__(NcclCommunicator), NcclCommunicator.__new__(NcclCommunicator)
    for each in (hidden, tokens):
        TorchCommunicator.__init__(each, _NoGroup(), position, names)
    pipeline = PipelineRank(position=position, size=ranges, hidden=hidden, tokens=tokens)
    everyone = SilentCommunicator(0, ranges)
    return EqualRanks(rank=0, size=ranges, communicator=everyone, channel=SilentChannel(), pipeline=pipeline)


def text_model(ranges: int) -> TextModel:
    config = DecoderConfig(
        width=16,
        num_layers=_LAYERS,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        mlp_width=16,
        max_positions=4096,
        rope_theta=1e4,
        rms_norm_eps=1e-6,
    )
    with partitioned(None, LayerRange("text", ranges - 1, ranges)):
        return TextModel(config, 64, tied=False).requires_grad_(False)


class _NoDrafts(Drafter):
    def draft(self, rows: DraftRows) -> None: ...


@dataclass(frozen=True, slots=True)
class HostWork:
    """Of one step. python, c: calls of functions. driver: calls by name."""

    ranges: int
    drafts: int
    recorded: bool
    python: int
    c: int
    driver: dict[str, int]
    cpu_us: float


class Bench:
    """A stage that decodes `rows` rows."""

    def __init__(self, ranges: int, drafts: int, rows: int, recorded: bool) -> None:
        device, ranks, model = _NoCuda(), last_rank(ranges), text_model(ranges)
        self._timeline = Timeline(device, ("text",)) if recorded else None
        options = ArOptions(max_num_seqs=rows, max_model_len=4096, prefix_cache=False)
        drafter = _NoDrafts() if drafts else None
        if drafts:
            options = msgspec.structs.replace(options, drafter="none", draft_tokens=drafts, adaptive_drafts=False)
        limits = Limits.of("text", options, model.shape, micro_batches=ranges)
        runner = self._runner = Runner(
            "text",
            device,
            model=model,
            backend=TorchPagedAttention(),
            limits=limits,
            dtype=torch.float32,
            priority=0,
            ranks=ranks,
            drafter=drafter,
        )
        blocks = limits.rows * limits.max_blocks
        runner.allocate(blocks)
        runner.capture({-(-rows // ranges), rows})
        if ranks is not None:
            runner.lead(ranks.channel)
        # What `accept_tokens` would write.
        runner._state.handoff.device[..., NUM_TOKENS] = 1
        if drafts:
            runner._state.handoff.device[..., GAIN] = drafts * RATE_ONE
        given = {"shape": model.shape, "limits": limits, "options": options, "drafter": drafter}
        self._worker = ArWorker("text", runner, num_blocks=blocks, **given)  # type: ignore[arg-type]
        self._drafts, self._sample, self._least = drafts, runner.sample_tokens, rows // ranges
        for index in range(rows):
            ask(self._worker, str(index), 1)
        for _ in range(rows + 4 * ranges):  # some rows start in each step
            tick(self._worker)
        if self._timeline is not None:
            self._timeline.start()

    def steps(self, count: int, call: Callable[[Callable[[], SampledStep]], SampledStep]) -> None:
        """Runs so many steps. call: calls `sample_tokens`."""
        left = count

        def sample(context: StepContext) -> SampledStep:
            nonlocal left
            assert context.launch.padded_rows is not None
            assert context.launch.count in (self._least, self._least + 1)
            assert context.launch.drafts == self._drafts
            left -= 1
            return call(lambda: self._sample(context))

        self._runner.sample_tokens = sample  # type: ignore[method-assign]
        while left > 0:
            tick(self._worker)
            if self._timeline is not None:
                self._timeline.poll()

    def close(self) -> None:
        if self._timeline is not None:
            self._timeline.close()


class _Kernels(TorchDispatchMode):
    """Counts operations that are no views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def measure(ranges: int, drafts: int, rows: int, steps: int, recorded: bool) -> HostWork:
    took: list[float] = []
    calls, made, kernels = Counter[str](), Counter[str](), _Kernels()

    def timed(call: Callable[[], SampledStep]) -> SampledStep:
        start = time.thread_time_ns()
        result = call()
        took.append((time.thread_time_ns() - start) / 1000)
        return result

    def counted(call: Callable[[], SampledStep]) -> SampledStep:
        driver.clear()
        sys.setprofile(lambda frame, event, _: calls.update((event,)))
        try:
            result = call()
        finally:
            sys.setprofile(None)
        made.update(driver)
        return result

    def dispatched(call: Callable[[], SampledStep]) -> SampledStep:
        with kernels:
            return call()

    with torch.inference_mode(), no_cuda():
        bench = Bench(ranges, drafts, rows, recorded)
        bench.steps(steps, timed)
        bench.steps(1, counted)
        bench.steps(1, dispatched)
        bench.close()
    # `call` is a function of this script; the last call of C is `setprofile`.
    made["kernels"] = kernels.count
    python, c = calls["call"] - 1, calls["c_call"] - 1
    return HostWork(ranges, drafts, recorded, python, c, dict(made), statistics.median(took))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=positive_int, default=64)
    parser.add_argument("--ranges", type=positive_int, choices=range(1, _LAYERS + 1), nargs="+", default=[1, 2, 4])
    parser.add_argument("--drafts", type=at_least(0), choices=range(MAX_DRAFTS + 1), nargs="+", default=[0])
    parser.add_argument("--steps", type=at_least(32), default=1000)
    parser.add_argument("--json", type=output_file)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = product((False, True), arguments.ranges, arguments.drafts)
    works = [measure(ranges, drafts, arguments.rows, arguments.steps, recorded) for recorded, ranges, drafts in cases]
    facts = environment()
    print_facts(facts)
    header = ("ranges", "drafts", "timeline", "Python", "C", *DRIVER, "CPU us")
    rows = [
        (
            str(work.ranges),
            str(work.drafts),
            "recorded" if work.recorded else "",
            str(work.python),
            str(work.c),
            *(str(work.driver.get(name, 0)) for name in DRIVER),
            f"{work.cpu_us:.1f}",
        )
        for work in works
    ]
    print_table(header, rows)
    if arguments.json is not None:
        write_json(arguments.json, [asdict(work) for work in works], facts)


if __name__ == "__main__":
    main()
