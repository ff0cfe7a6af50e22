"""A world of two models: the hidden states of one condition the steps of the other."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from omni.device import Device
from omni.engine import Engine, EngineRequest
from omni.sampling import HostRules, SamplingParams
from omni.testing.engines import TickedEngine
from tests.support.conditioned import ANSWERER, conditioned_plugins
from tests.support.conditioned import ask as ask_conditioned
from tests.support.conditioned import write_checkpoint as write_conditioned
from tests.support.hidden_family import WRITER
from tests.support.small_text import TwoInARow
from tests.support.traffic_world import WHOLE, Knobs, ar_knobs

_CREDIT = "credit"


class ConditionedWorld:
    """A text model, and one whose steps are conditioned by its hidden states: they never visit the host."""

    name = "conditioned"
    knobs: ClassVar[Knobs] = {
        **ar_knobs(WRITER, 4, 100, 8),
        **ar_knobs(ANSWERER, 3, 100, 10),
        _CREDIT: (WHOLE, 4, 1),
    }
    _TOKENS = 14

    def __init__(self, folder: Path) -> None:
        credits: Sequence[int] = (WHOLE, 4, 1)
        self._folders = {credit: write_conditioned(folder / str(credit), credit) for credit in credits}

    @property
    def contents(self) -> int:
        return 10

    def engine(self, device: Device, settings: Mapping[str, object]) -> Engine:
        options = dict(settings)
        folder = self._folders[int(str(options.pop(_CREDIT)))]
        return TickedEngine(folder, conditioned_plugins(), options, device, graphs=True).engine

    def request(self, content: int, request_id: str, priority: int) -> EngineRequest:
        length, answers = (1, 4, 9, 3, 6)[content % 5], (self._TOKENS, 9, 18)[content % 3]
        written = [(5 * p + (p > 5) * content) % 61 for p in range(length)]  # many begin alike
        heard = [(7 * p + (p > 3) * content) % 53 for p in range(2 + length)]
        sampled: Mapping[str, Any] = {"temperature": 0.9, "top_k": 20, "repetition_penalty": 1.1, "seed": 11}
        rules = HostRules(stops=TwoInARow(frozenset(range(0, 61, 2)))) if content % 4 == 2 else None
        return ask_conditioned(
            request_id,
            written,
            heard,
            from_frontend=content % 2 == 1,
            priority=priority,
            sampling={
                WRITER: SamplingParams(max_tokens=self._TOKENS, **(sampled if content % 4 == 1 else {})),
                ANSWERER: SamplingParams(max_tokens=answers, **(sampled if content % 4 == 3 else {})),
            },
            rules=rules,
        )
