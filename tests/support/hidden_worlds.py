"""Worlds of a text model whose hidden states other stages read: in one engine and two, with and without pools."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from omni.device import Device
from omni.engine import EngineRequest
from omni.payload import Payload
from omni.plugin import ConnectorEntry
from omni.plugin.manager import Plugins
from omni.sampling import HostRules, SamplingParams
from omni.testing import SimulatedDevice
from omni.testing.engines import TickedEngine
from tests.support.ar_driver import plain_prompt
from tests.support.hidden_family import HOST_READER, READER, TOKEN_READER, WRITER, hidden_plugins
from tests.support.hidden_family import write_checkpoint as write_hidden
from tests.support.marking_connector import MarkingConnector
from tests.support.small_text import NothingTwice, TwoInARow
from tests.support.split_engine import SplitEngine
from tests.support.traffic_world import POOL, WHOLE, AnyEngine, Knobs, ar_knobs, pooled
from tests.support.two_engines import THERE

_PAUSES = "pauses"


class HiddenWorld:
    """A text model whose every token's hidden state is read by one stage on the device and one in host memory.

    Both keep rows to the end, so the credit of one of their edges must be enough for a whole request: the other edge pauses it.
    """

    name = "hidden"
    knobs: ClassVar[Knobs] = {
        _PAUSES: (HOST_READER, READER),
        **ar_knobs(WRITER, 4, 100, 9),
        f"{READER}.max_num_seqs": (4, 1),
        f"{READER}.every": (1, 5),
        f"{HOST_READER}.max_num_seqs": (4, 1),
        f"{HOST_READER}.every": (1, 7),
    }
    _TOKENS = 12
    _VOCAB = 61
    _SAMPLING: Sequence[Mapping[str, Any]] = (
        {},
        {"temperature": 0.9, "top_k": 20, "seed": 3},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "logprobs": 2},
        {"prompt_logprobs": 1, "bad_words_ids": ((4,), (7, 9))},
        {"stop_token_ids": tuple(range(0, 61, 9)), "min_tokens": 3},
        {"temperature": 1.0, "min_p": 0.02, "seed": 8, "presence_penalty": 0.5},
    )

    _WIDTH = 64

    def __init__(self, folder: Path) -> None:
        credits = {READER: {READER: 4, HOST_READER: WHOLE}, HOST_READER: {READER: WHOLE, HOST_READER: 4}}
        self._folders = {
            name: write_hidden(folder / name, width=self._WIDTH, readers=(READER, HOST_READER), credit=credit)
            for name, credit in credits.items()
        }

    @property
    def contents(self) -> int:
        return 12

    def engine(self, device: Device, settings: Mapping[str, object]) -> AnyEngine:
        options = dict(settings)
        folder = self._folders[str(options.pop(_PAUSES))]
        return TickedEngine(folder, hidden_plugins(), options, device, graphs=True).engine

    def request(self, content: int, request_id: str, priority: int) -> EngineRequest:
        length = (1, 4, 9, 17, 12, 21)[content % 6]
        ids = [(5 * p + (p > 7) * content) % self._VOCAB for p in range(length)]  # many begin alike
        prompt = plain_prompt(ids, payload_positions=np.arange(0, length, 3))
        return EngineRequest(
            request_id,
            frozenset({"text", "read", "filed"}),
            {WRITER: [Payload(prompt)]},
            sampling={WRITER: SamplingParams(max_tokens=self._TOKENS, **self._SAMPLING[content // 2])},
            priority=priority,
            rules=self._rules(content),
        )

    def _rules(self, content: int) -> Mapping[str, HostRules]:
        if content % 4 == 3:
            return {WRITER: HostRules(host_processors=(NothingTwice(self._VOCAB, most=10),))}
        if content % 4 == 2:
            return {WRITER: HostRules(stops=TwoInARow(frozenset(range(0, self._VOCAB, 2))))}
        return {}


class PooledWorld(HiddenWorld):
    """The same through pools of shared memory. A small one holds three rows of hidden states, each of two pieces; a larger
    one holds six, of one piece each."""

    name = "pooled"
    knobs: ClassVar[Knobs] = {**HiddenWorld.knobs, POOL: (2**17, 2**16)}
    _WIDTH = 5000

    def engine(self, device: Device, settings: Mapping[str, object]) -> AnyEngine:
        """The expected results are those of an engine without pools."""
        if not isinstance(device, SimulatedDevice):
            return super().engine(device, {name: value for name, value in settings.items() if name != POOL})
        return super().engine(device, pooled(settings, (WRITER, READER), (WRITER, HOST_READER)))


class ApartWorld(PooledWorld):
    """The writer in one engine and its readers in another."""

    name = "apart"
    _CONNECTOR = "shm"

    def engine(self, device: Device, settings: Mapping[str, object]) -> AnyEngine:
        if not isinstance(device, SimulatedDevice):
            return super().engine(device, settings)
        assert device.schedule is not None
        options = {
            **pooled(settings, (WRITER, READER), (WRITER, HOST_READER), connector=self._CONNECTOR),
            f"{READER}.place": THERE,
            f"{HOST_READER}.place": THERE,
        }
        folder = self._folders[str(options.pop(_PAUSES))]
        return SplitEngine(folder, self._plugins(), options, device, device.schedule.random)

    def _plugins(self) -> Plugins:
        return hidden_plugins()


class MarkedWorld(ApartWorld):
    """The same through pools with a board of copied pieces, as `cuda_ipc` has one: pieces arrive before their copies have run."""

    name = "marked"
    _CONNECTOR = "marking"

    def _plugins(self) -> Plugins:
        plugins = super()._plugins()
        path = f"{MarkingConnector.__module__}:{MarkingConnector.__qualname__}"
        entry = ConnectorEntry(name=self._CONNECTOR, connector=path)
        entries = {**plugins.connectors.entries, self._CONNECTOR: entry}
        return replace(plugins, connectors=replace(plugins.connectors, entries=entries))


class TokensWorld(HiddenWorld):
    """The writer in one engine; in another a slow token reader, which is given tokens only: payloads without tensors."""

    name = "apart tokens"
    knobs: ClassVar[Knobs] = {
        **ar_knobs(WRITER, 4, 100, 11),
        f"{WRITER}.max_in_flight": (1, 2),
        f"{TOKEN_READER}.max_num_seqs": (4, 1),
        f"{TOKEN_READER}.every": (2, 4),
        f"{TOKEN_READER}.payloads_per_read": (1,),
    }
    CREDIT = 3
    _TOKENS = 20

    def __init__(self, folder: Path) -> None:
        self._folder = write_hidden(folder, readers=(TOKEN_READER,), credit=self.CREDIT)

    def engine(self, device: Device, settings: Mapping[str, object]) -> AnyEngine:
        if not isinstance(device, SimulatedDevice):
            return TickedEngine(self._folder, hidden_plugins(), settings, device, graphs=True).engine
        assert device.schedule is not None
        options = {**settings, f"{TOKEN_READER}.place": THERE}
        return SplitEngine(self._folder, hidden_plugins(), options, device, device.schedule.random)

    def request(self, content: int, request_id: str, priority: int) -> EngineRequest:
        return replace(super().request(content, request_id, priority), modalities=frozenset({"text", "noted"}))
