"""The talker's conditioning by the thinker never visits the host, while all stages run ahead and nothing waits for the device."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from omni import Omni, SamplingParams
from omni.device import Device, Graph, Stream, SyncCheck, sync_guard
from omni.device.cuda import CudaDevice
from omni.engine import Plan
from omni.frontend.base import Chat
from omni.payload import PageSlice
from omni.stage import Feed
from omni.testing.simulation.late import LateDevice
from omni_ar.inputs import MultimodalEmbedding, StepInputs
from omni_ar.run.request import ArRequest
from omni_ar.run.worker import ArWorker
from tests.plugins.omni_qwen2_5_omni.fixed_noise import CHATS, SHAPES, STREAMED, FixedNoiseEngine, answers_alone
from tests.support.close_calls import Comparison
from tests.support.devices import full_float32, no_synchronization
from tests.support.omni_engine import Result, assert_all_same
from tests.support.tiers import SLOW, few
from tests.support.tiny_omni import assert_freed, picture, sound, tiny_plugins, user
from tests.support.tiny_qwen2_5_omni import tiny_folder

pytestmark = pytest.mark.thorough

# What is copied from a device to the host.

_COPIES = {"copy_": 1, "_to_copy": 0, "to": 0}
"""By name, which argument is the source. Other operators work on one device."""


class HostReads(TorchDispatchMode):
    """While entered, remembers the sources of all copies from the device to the host, of this thread. Where graphs are captured, it
    is entered before.

    Where the CPU stands in for the device, host memory is what numpy shares, as it does that of a `HostSlot`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would import its compiler only to keep away from this class.
        return False

    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        made = func(*args, **(kwargs or {}))
        place = _COPIES.get(func.overloadpacket.__name__)
        if place is not None and _to_host(args[place], made):
            self.sources.append(args[place])
        return made

    def saw(self, tensor: Tensor) -> bool:
        """Whether anything of the tensor's storage was copied."""
        place = tensor.untyped_storage().data_ptr()
        return any(source.untyped_storage().data_ptr() == place for source in self.sources)

    def floats(self, width: int) -> list[Tensor]:
        """Sources of numbers in rows of this width."""
        return [source for source in self.sources if source.is_floating_point() and source.shape[-1:] == (width,)]


def _to_host(source: Tensor, target: Tensor) -> bool:
    if source.is_cuda or target.is_cuda:
        return source.is_cuda and target.is_cpu
    return source.untyped_storage().resizable() and not target.untyped_storage().resizable()


SHAPE = "as written"
AHEAD = {
    f"{stage}.{name}": value
    for stage in ("thinker", "talker")
    for name, value in {
        "max_in_flight": 3,
        "max_num_seqs": 5,
        "graph_batch_sizes": (5,),
        "graph_chunk_sizes": (),
    }.items()
} | {"token2wav.graph_batch_sizes": (), "audio_encoder.graph_lengths": (), "vision_encoder.graph_lengths": ()}
"""Decode steps are captured; capturing the rest takes long where the CPU stands in."""
_NAP = 20_000_000
"""Of the device's clock: some ten milliseconds, in which a host that shares its cores launches a step."""


class NappingCuda(CudaDevice):
    """Rests before each graph: tiny steps would be over before the host can launch another."""

    def replay(self, stream: Stream, graph: Graph) -> None:
        with self.on(stream):
            torch.cuda._sleep(_NAP)
        super().replay(stream, graph)


DEVICES: dict[str, Callable[[], Device]] = {"simulated": lambda: LateDevice(3), "cuda": NappingCuda}
ON = pytest.mark.parametrize("name", ["simulated", pytest.param("cuda", marks=pytest.mark.gpu)])


@dataclass
class Watch:
    """heard, steps: what the talker was fed of the thinker's states, as it was fed, for its prompts and for its steps. most: steps
    that a stage had in flight at once."""

    reads: HostReads = field(default_factory=HostReads)
    heard: list[torch.Tensor | PageSlice] = field(default_factory=list)
    steps: list[torch.Tensor | PageSlice] = field(default_factory=list)
    most: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def intake(self) -> Iterator[None]:
        feed = ArWorker.feed

        def watched(worker: ArWorker, request: ArRequest, message: Feed) -> None:
            if worker.name == "talker":
                tensors = message.payload.tensors.values()
                match message.payload.meta:
                    case MultimodalEmbedding():
                        self.heard += tensors
                    case StepInputs():
                        self.steps += tensors
            feed(worker, request, message)

        with patch.object(ArWorker, "feed", watched):
            yield


def run(
    device: Device, watch: Watch, chats: Sequence[Chat] = CHATS, change: Callable[[Plan], Plan] = lambda plan: plan
) -> list[Result]:
    """All requests together, captured, with nothing on the way that waits."""
    results = [Result() for _ in chats]
    with ExitStack() as stack:
        for context in (full_float32(), torch.inference_mode(), watch.intake(), watch.reads):
            stack.enter_context(context)
        engine = FixedNoiseEngine(
            tiny_folder(**SHAPES[SHAPE]), AHEAD | dict(STREAMED), device, change=change, graphs=True
        )
        requests = [engine.request(asked) for asked in chats]
        device.synchronize()
        stack.enter_context(sync_guard(device, SyncCheck.ERROR))
        if device.torch_device.type == "cuda":
            stack.enter_context(no_synchronization())
        for request, result in zip(requests, results, strict=True):
            engine.engine.submit(request, result.take)
        while not engine.engine.idle:
            if not engine.engine.tick() and isinstance(device, LateDevice):
                device.skip()
            for stage, usage in engine.engine.usage().items():
                watch.most[stage] = max(watch.most[stage], usage.get("steps", 0))
        engine.assert_free()
    return results


@ON
def test_states_go_from_device_memory_to_device_memory(name: str) -> None:
    device, watch = DEVICES[name](), Watch()
    results = run(device, watch)
    assert_all_same(results, answers_alone(SHAPE, whole=False), Comparison())

    # A spoken text's first token is heard with the prompt, its last is not.
    spoken = [result for result in results if result.frames]
    assert len(watch.heard) == 2 * len(spoken)
    assert len(watch.steps) == sum(len(result.ids) - 2 for result in spoken)
    slices = [given for given in (*watch.heard, *watch.steps) if isinstance(given, PageSlice)]
    assert len(slices) == len(watch.heard) + len(watch.steps)
    (pages,) = {id(given.pages): given.pages for given in slices}.values()
    assert pages.device.type == device.torch_device.type

    assert watch.reads.sources, "tokens and samples are read"
    assert not watch.reads.saw(pages)
    assert not watch.reads.floats(pages.shape[-1])
    assert watch.most["thinker"] > 1
    assert watch.most["talker"] > 1


@ON
def test_the_watch_detects_copies_of_conditioning(name: str) -> None:
    """Where the talker asks for host memory, speech is the same, and the copies of its conditioning are seen."""

    def through_the_host(plan: Plan) -> Plan:
        edges = tuple(
            msgspec.structs.replace(edge, memory="host" if edge.consumer == "talker" else edge.memory)
            for edge in plan.pipeline.edges
        )
        return replace(plan, pipeline=msgspec.structs.replace(plan.pipeline, edges=edges))

    watch = Watch()
    results = run(DEVICES[name](), watch, CHATS[1:2], through_the_host)
    assert_all_same(results, answers_alone(SHAPE, whole=False)[1:2], Comparison())
    given = [one for one in (*watch.heard, *watch.steps) if isinstance(one, torch.Tensor)]
    assert len(given) == len(watch.heard) + len(watch.steps) > 0
    assert watch.reads.floats(given[0].shape[-1])


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("graphs", few(1, [True, False], SLOW), ids=["captured", "eager"])
def test_the_engine_s_thread_with_the_variable_set(name: str, graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_SYNC_CHECK", "error")
    settings = {"engine.graphs": graphs, "token2wav.graph_batch_sizes": (4,), **AHEAD, **STREAMED}
    asked = {"thinker": SamplingParams(max_tokens=12), "talker": SamplingParams(max_tokens=30, ignore_eos=True, seed=1)}
    chats = [user("hello"), user(picture(1, 60, 100), sound(2, 0.6), "who are you"), user("tell me more")]
    with Omni(tiny_folder(**SHAPES[SHAPE]), device=name, plugins=tiny_plugins(), overrides=settings) as omni:
        results = omni.generate(chats, sampling=asked, stream=False)
        assert_freed(omni)
    assert [result.error for result in results] == [None] * len(chats)
    assert all(result.audio is not None and len(result.audio) for result in results)
