"""The requests of a family's checks, run on engines of any settings and compared with the author's loop."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from omni.device import Device
from omni.engine import EngineRequest, Plan
from omni.errors import ConfigError, OmniError
from omni.frontend.base import Chat, Message, TextPart
from omni.payload import Payload
from omni.plugin.manager import Plugins
from omni.sampling import SamplingParams
from omni.testing.contract import Contract
from omni.testing.engines import GIVEN_UP, PipelineEngine, engine_for
from omni.testing.engines.watched import Watch

Reference = Callable[[Sequence[int], int], Sequence[int]]
"""Takes prompt token ids and a number of tokens, and returns this number of token ids: greedy, one request alone, without a stop at
an end-of-sequence id."""

FAMILY = Contract("family")
BLOCK = 4
"""Tokens of a KV block, where a check needs many blocks."""


@dataclass(frozen=True, slots=True)
class FamilyCase:
    """A text, the ids of its prompt, and the ids that the reference gives."""

    chat: Chat
    name: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TestedFamily:
    """A family under test. texts: as given to `check_family`."""

    folder: Path
    plugins: Plugins
    stage: str | None
    max_tokens: int
    overrides: Mapping[str, object]
    seeds: Sequence[int]


class FamilyBench:
    """cases: one for each text. stage: whose tokens are compared."""

    def __init__(self, family: TestedFamily, texts: Sequence[str | Chat], reference: Reference) -> None:
        self.family = family
        with self._engine({}, None, Watch(), {}) as engine:
            pipeline = engine.plan.pipeline
            stage = family.stage or pipeline.main_stage
            if stage is None or stage not in pipeline.sampling_stages:
                names = ", ".join(pipeline.sampling_stages) or "none"
                raise ConfigError("stage", f"{stage!r} generates no tokens", f"name a stage that samples: {names}")
            self.stage: str = stage
            self._text_stage = pipeline.text_stage
            self._sampling_stages = pipeline.sampling_stages
            self._default = frozenset(each.modality for each in pipeline.outputs if each.default)
            self.options = frozenset(pipeline.stage(stage).options.__struct_fields__)
            """The names of the stage's options: a check leaves out those that its kind lacks."""
            chats = [self._greedy(text) for text in texts]
            prompts = [self._prompt(engine, chat) for chat in chats]
        self.cases = [
            FamilyCase(chat, _name(index, chat), prompt, _answer(reference, prompt, family.max_tokens))
            for index, (chat, prompt) in enumerate(zip(chats, prompts, strict=True))
        ]

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer."""
        return max(len(case.prompt) for case in self.cases) + self.family.max_tokens

    def settings(self, **options: object) -> dict[str, object]:
        """Options of the stage, by dotted path; those that its kind lacks are left out."""
        return {f"{self.stage}.{name}": value for name, value in options.items() if name in self.options}

    def run(
        self,
        settings: Mapping[str, object],
        remedy: str,
        *,
        cases: Sequence[FamilyCase] | None = None,
        arrivals: Sequence[int] | None = None,
        departures: Mapping[int, int] | None = None,
        device: Device | None = None,
        guard: Callable[[Device], AbstractContextManager[object]] = lambda device: nullcontext(),
        rounds: int = 1,
        alone: bool = False,
        **engine_options: Any,
    ) -> tuple[Watch, Mapping[str, int]]:
        """Runs the requests, `rounds` times on one engine, and compares their tokens. Returns the last round's watch, and the
        stage's counters.

        alone: one request after the other. cases: all by default. guard: entered while requests run. For the others see
        `PipelineEngine.run`.
        """
        cases = self.cases if cases is None else cases
        watch = Watch()
        with self._engine(settings, device, watch, engine_options) as engine:
            for _ in range(rounds):
                watch.tokens.clear()
                requests = [replace(engine.request(case.chat), id=f"{case.name} ({n})") for n, case in enumerate(cases)]
                batches = [[request] for request in requests] if alone else [requests]
                with guard(engine.device):
                    results = [result for batch in batches for result in engine.run(batch, arrivals, departures)]
                for request, case, result in zip(requests, cases, results, strict=True):
                    self._compare(request, case, watch, result.error, remedy)
            return watch, engine.engine.counters()[self.stage]

    def _engine(
        self, settings: Mapping[str, object], device: Device | None, watch: Watch, options: Mapping[str, Any]
    ) -> AbstractContextManager[PipelineEngine]:
        family = self.family

        def watched(plan: Plan) -> Plan:
            stage = family.stage or plan.pipeline.main_stage
            return watch.watched(plan, stage) if stage is not None and stage in plan.kinds else plan

        return engine_for(
            family.folder,
            plugins=family.plugins,
            device=device,
            overrides={**family.overrides, **settings},
            change=watched,
            **options,
        )

    def _greedy(self, text: str | Chat) -> Chat:
        wanted = frozenset({"text"}) if self.stage == self._text_stage else self._default
        chat = Chat((Message("user", (TextPart(text),)),), wanted, None, {}) if isinstance(text, str) else text
        sampling = SamplingParams(temperature=0.0, max_tokens=self.family.max_tokens, ignore_eos=True)
        return replace(chat, sampling=dict.fromkeys(self._sampling_stages, sampling))

    def _prompt(self, engine: PipelineEngine, chat: Chat) -> tuple[int, ...]:
        inputs: Sequence[Payload] = engine.request(chat).inputs.get(self.stage, ())
        found = [msgspec.structs.asdict(payload.meta).get("columns") for payload in inputs]
        columns = [each for each in found if isinstance(each, np.ndarray) and each.ndim == 2]
        if len(columns) != 1:
            raise FAMILY.error(
                f"the front end gives stage {self.stage!r} one prompt, not {len(columns)} (Frontend.prepare)",
                "put one omni_ar.inputs.Prompt into Prepared.inputs, under the name of the stage",
            )
        return tuple(columns[0][0].tolist())

    def _compare(
        self, request: EngineRequest, case: FamilyCase, watch: Watch, error: OmniError | None, remedy: str
    ) -> None:
        tokens, wanted = watch.tokens.get(request.id, []), list(case.answer)
        if error is GIVEN_UP:
            wanted = wanted[: len(tokens)]
        elif error is not None:
            raise FAMILY.error(f"{case.name} does not fail ({error})", remedy) from error
        if tokens == wanted:
            return
        at = next((n for n, pair in enumerate(zip(tokens, wanted, strict=False)) if pair[0] != pair[1]), len(tokens))
        got = tokens[at] if at < len(tokens) else "missing"
        right = wanted[at] if at < len(wanted) else "no further one"
        raise FAMILY.error(
            f"{case.name} gets the tokens of the reference: token {at} is {got}, not {right} "
            f"(a prompt of {len(case.prompt)} tokens; {tokens}, not {wanted})",
            remedy,
        )


def _name(index: int, chat: Chat) -> str:
    parts = [part.text for message in chat.messages for part in message.content if isinstance(part, TextPart)]
    text = " ".join(parts)
    return f"text {index}, {text[:30]!r}" if text else f"text {index}"


def _answer(reference: Reference, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    tokens = [int(token) for token in reference(list(prompt), count)]
    if len(tokens) != count:
        echoed = (
            " and begins with the prompt: return the new tokens alone" if tokens[: len(prompt)] == [*prompt] else ""
        )
        remedy = "return exactly that many, and go on after an end-of-sequence id"
        raise ConfigError("reference", f"gives {len(tokens)} tokens instead of {count}{echoed}", remedy)
    return tuple(tokens)
