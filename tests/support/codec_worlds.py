"""Worlds of a talker with conditioning whose frames two vocoders and a host reader take, with and without pools."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from omni.device import Device
from omni.engine import EngineRequest
from omni.payload import Payload
from omni.sampling import SamplingParams
from omni.testing import SimulatedDevice
from omni.testing.engines import TickedEngine
from omni_ar.inputs import StepInputs
from tests.support.codec_family import SPEAKER, codec_plugins
from tests.support.codec_family import write_checkpoint as write_codec
from tests.support.small_codec import codec_prompt
from tests.support.traffic_world import POOL, AnyEngine, Knobs, ar_knobs, pooled


class CodecWorld:
    """A talker with conditioning, whose frames two vocoders take on the device and a host reader in host memory."""

    name = "codec"
    knobs: ClassVar[Knobs] = {
        **ar_knobs(SPEAKER, 3, 100, 10),
        "voice.max_num_seqs": (3, 1),
        "voice.chunk_frames": (3, 1),
        "voice.graph_batch_sizes": ((), None, (1,)),
        "echo.max_num_seqs": (3, 1, 1),
        "host_reader.every": (1, 6),
    }

    def __init__(self, folder: Path) -> None:
        self._folder = write_codec(folder, credit=5)

    @property
    def contents(self) -> int:
        return 10

    def engine(self, device: Device, settings: Mapping[str, object]) -> AnyEngine:
        return TickedEngine(self._folder, codec_plugins(), settings, device, graphs=True, scheduling="fixed").engine

    def request(self, content: int, request_id: str, priority: int) -> EngineRequest:
        length = (1, 4, 9, 14, 6)[content % 5]
        late = [(p > 5) * content for p in range(length)]
        prompt = codec_prompt(
            [(3 * p + n) % 23 for p, n in enumerate(late)], [(5 * n + p * p) % 37 for p, n in enumerate(late)]
        )
        texts = np.array([[(content + step * step) % 23 for step in range(6)]], np.int64)
        steps = StepInputs(columns=texts, pad=np.array([2], np.int64))
        sampled: Mapping[str, Any] = {"temperature": 0.9, "top_k": 20, "repetition_penalty": 1.1, "seed": 11}
        sampling = SamplingParams(max_tokens=15, **(sampled if content == 6 else {}))  # costs much
        return EngineRequest(
            request_id,
            frozenset({"codes", "audio", "echo", "filed"}),
            {SPEAKER: [Payload(prompt), Payload(steps)]},
            sampling={SPEAKER: sampling},
            priority=priority,
        )


class PooledCodecWorld(CodecWorld):
    """The same through pools: payloads arrive before they are ready."""

    name = "pooled codec"
    knobs: ClassVar[Knobs] = {**CodecWorld.knobs, POOL: (2**16,)}

    def engine(self, device: Device, settings: Mapping[str, object]) -> AnyEngine:
        """The expected results are those of an engine without pools."""
        if not isinstance(device, SimulatedDevice):
            return super().engine(device, {name: value for name, value in settings.items() if name != POOL})
        return super().engine(device, pooled(settings, *((SPEAKER, to) for to in ("voice", "echo", "host_reader"))))
