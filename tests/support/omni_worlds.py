"""Worlds of the tiny Qwen3-Omni."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch

from omni.device import Device
from omni.engine import Engine, EngineRequest
from omni.frontend.base import Chat
from omni.sampling import SamplingParams
from omni.testing import SimulatedDevice
from tests.support.omni_engine import OmniEngine
from tests.support.reference import chat, picture, sizes, sound, tiny_checkpoint
from tests.support.traffic_world import Knobs, ar_knobs


class OmniWorld:
    """The tiny Qwen3-Omni, with media, text and sound."""

    name = "omni"
    _scheduling = "fixed"
    knobs: ClassVar[Knobs] = {
        **ar_knobs("thinker", 4, 100, 10),
        **ar_knobs("talker", 4, 100, 13),
        "code2wav.max_num_seqs": (4, 1),
        "code2wav.first_chunk_frames": (10, 2),
        "code2wav.chunk_frames": (25, 5),
    }
    _CHATS: Sequence[Chat] = (
        chat("what is it", sound(0.5, 1), picture(64, 96, 2), max_text=9, max_codes=14),
        chat("hello there", max_text=12, max_codes=30),
        chat(picture(40, 40, 3), "x", max_text=3, max_codes=6),
        chat("bye", max_text=2, max_codes=4),
        chat("what is it", sound(0.5, 1), voice=None, max_text=8, thinker=SamplingParams(logprobs=2)),
        chat("hello there", voice="aiden", max_text=6, max_codes=9, talker=SamplingParams(temperature=0.9, seed=4)),
    )

    @property
    def contents(self) -> int:
        return len(self._CHATS)

    def engine(self, device: Device, settings: Mapping[str, object]) -> Engine:
        return OmniEngine(self._folder, settings, device, scheduling=self._scheduling).engine

    def request(self, content: int, request_id: str, priority: int) -> EngineRequest:
        return replace(self._prepared[content], id=request_id, priority=priority)

    @cached_property
    def _folder(self) -> Path:
        return tiny_checkpoint(**sizes(seed=81, stop_gain=0.0, codec_stop_gain=0.0))

    @cached_property
    def _prepared(self) -> Sequence[EngineRequest]:
        with torch.inference_mode():
            engine = OmniEngine(self._folder)
            return [engine.request(asked) for asked in self._CHATS]


class SlackWorld(OmniWorld):
    """The same scheduled by the slack of listeners. The expected results are those of an engine without."""

    name = "by slack"

    def engine(self, device: Device, settings: Mapping[str, object]) -> Engine:
        if not isinstance(device, SimulatedDevice):
            return super().engine(device, settings)
        few = {f"{stage}.short_slack_prefill_tokens": 2 for stage in ("thinker", "talker")}
        return OmniEngine(self._folder, {**settings, **few}, device).engine
