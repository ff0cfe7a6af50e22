"""Prepares a request: from messages and arguments to what the engine takes."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from omni.api.held import held_prepared
from omni.api.request import Request, Started
from omni.engine import EngineClient, EngineRequest, Held
from omni.errors import InputError, plugin_call
from omni.frontend.base import Chat, Frontend
from omni.frontend.compile import SamplingCompiler
from omni.frontend.limit import PromptLimit, check_prompt
from omni.frontend.messages import parse_messages
from omni.frontend.options import FrontendOptions
from omni.frontend.prepared import checked_prepared
from omni.pipeline import Pipeline
from omni.sampling import SamplingParams


def check_at_stages(
    engine: EngineClient, compiler: SamplingCompiler, sampling: Mapping[str, SamplingParams], fields: Mapping[str, str]
) -> None:
    """See `EngineClient.check`; errors are about texts where texts were given. May wait for another process."""
    try:
        engine.check(compiler.in_ids(sampling), fields)
    except InputError as error:
        raise compiler.in_texts(error, sampling, fields) from error


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """requests: by handle. held: their host memory."""

    requests: Mapping[str, EngineRequest]
    started: Started
    held: Held


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPreparer:
    """Decodes media, has the family's front end make inputs of the chat, and compiles its sampling. May take long."""

    pipeline: Pipeline
    frontend: Frontend
    compiler: SamplingCompiler
    engine: EngineClient
    options: FrontendOptions
    limit: PromptLimit | None

    def prepare(self, request: Request) -> PreparedRequest:
        """Raises any error of a library."""
        taken = time.perf_counter()
        arguments, frontend = request.arguments, self.frontend
        # Checked first: media of a refused request are not decoded.
        check_at_stages(self.engine, self.compiler, arguments.sampling, arguments.fields)
        messages = parse_messages(
            request.messages,
            sample_rate=frontend.sample_rate,
            names=frontend.takes_names,
            media=self.options.media,
            downloaded=request.downloaded,
        )
        chat = Chat(
            messages=messages,
            modalities=arguments.prepared,
            voice=arguments.voice,
            sampling=arguments.sampling,
            cache_salt=arguments.cache_salt,
            control_tokens=self.options.control_tokens,
            limit=self.limit,
            raw=arguments.raw_prompt,
        )
        with plugin_call("frontend", "preparing the request", frontend.prepare):
            returned, modalities = frontend.prepare(chat), arguments.modalities
            prepared = checked_prepared(returned, self.pipeline, modalities, frontend.prepare)
        check_prompt(prepared.prompt_tokens, arguments.max_prompt_tokens)
        compiled = self.compiler.compile(arguments.sampling, arguments.fields, arguments.n)
        self.engine.check({stage: compiled.sampling[stage] for stage in arguments.sampling}, arguments.fields)
        remote = self.engine.takes_text_rules
        requests = {
            handle: EngineRequest(
                id=handle,
                modalities=arguments.modalities,
                inputs=prepared.inputs,
                edges=prepared.edges,
                sampling=compiled.sampling,
                priority=arguments.priority,
                cache_salt=arguments.cache_salt,
                sample_index=sample,
                listened=arguments.listened,
                rules={} if remote else self.compiler.host_rules(compiled),
                text_rules=compiled.rules if remote else {},
            )
            for sample, handle in enumerate(request.samples)
        }
        started = Started(taken, prepared.prompt_tokens, compiled.after_stop)
        return PreparedRequest(requests, started, held_prepared(prepared))
