"""From a chat to what the engine takes."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omni.api.job import Question
from omni.api.measure import held_prepared
from omni.api.ticket import Started
from omni.engine import Engine, EngineRequest, Held
from omni.errors import OmniError, known
from omni.frontend.base import Chat, Frontend
from omni.frontend.compile import SamplingCompiler
from omni.frontend.encoding import PromptLimit
from omni.frontend.messages import parse_messages
from omni.frontend.options import FrontendOptions


@dataclass(frozen=True, slots=True)
class Preparation:
    """requests: by ticket id. held: what they keep."""

    requests: Mapping[str, EngineRequest]
    started: Started
    held: Held


@dataclass(frozen=True, slots=True)
class Preparer:
    """Decodes media, has the family make inputs of the chat, and compiles what it asks of its text. May take long."""

    frontend: Frontend
    compiler: SamplingCompiler
    engine: Engine
    options: FrontendOptions
    limit: PromptLimit | None

    def prepare(
        self, question: Question, downloaded: Mapping[str, bytes], tickets: Sequence[str]
    ) -> Preparation | OmniError:
        """What is wrong with it is returned. tickets: ids, of the answers in order."""
        taken = time.perf_counter()
        try:
            return self._prepare(question, downloaded, tickets, taken)
        except BaseException as error:  # a library's panic too: nobody looks at what a thread raises
            return known("frontend", "preparing the request", error)

    def _prepare(
        self, question: Question, downloaded: Mapping[str, bytes], tickets: Sequence[str], taken: float
    ) -> Preparation:
        ask, front = question.ask, self.frontend
        read = parse_messages(
            question.messages,
            sample_rate=front.sample_rate,
            names=front.takes_names,
            media=self.options.media,
            downloaded=downloaded,
        )
        chat = Chat(
            read,
            ask.modalities,
            ask.voice,
            ask.sampling,
            ask.cache_salt,
            control_tokens=self.options.control_tokens,
            limit=self.limit,
        )
        prepared = front.prepare(chat)
        compiled = self.compiler.compile(ask.sampling, ask.fields, ask.samples)
        self.engine.check({stage: compiled.sampling[stage] for stage in ask.sampling}, ask.fields)
        requests = {
            ticket: EngineRequest(
                ticket,
                ask.modalities,
                prepared.inputs,
                prepared.edges,
                compiled.sampling,
                ask.priority,
                ask.cache_salt,
                sample,
                compiled.rules(),
            )
            for sample, ticket in enumerate(tickets)
        }
        started = Started(taken, prepared.prompt_tokens, compiled.after_stop)
        return Preparation(requests, started, held_prepared(prepared))
