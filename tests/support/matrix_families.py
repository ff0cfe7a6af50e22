"""A logits processor that sees what a request has said, as a plugin brings it: no run of `size` tokens comes twice."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.metadata import EntryPoint
from pathlib import Path

import msgspec
import numpy as np

from omni.api.load import build_frontend
from omni.checkpoint import Checkpoint
from omni.config import Layer
from omni.device import Device
from omni.engine import Engine, EngineOptions, EngineRequest, build_engine, check_pipeline, resolve_pipeline
from omni.frontend.base import Chat, Prepared
from omni.frontend.compile import CompiledSampling
from omni.hookspecs import hookimpl
from omni.payload import Payload
from omni.plugin.entries import LogitsProcessorEntry
from omni.plugin.manager import Plugins, load_plugins
from omni.sampling import NO_RULES, HostLogitsProcessor, LogitsEdit, SamplingParams
from omni_ar.hidden_conditioning import HiddenConditioningArgs
from omni_ar.options import ArOptions
from omni_ar.processors import HistoryProcessor
from omni_ar.text_conditioning import TextConditioningArgs
from omni_text.frontend import build as build_text_frontend
from tests.support.ar_driver import plain_prompt
from tests.support.entry_points import own_entry_points
from tests.support.matrix import GREEDY, SAMPLED, Family, blocks_for_one
from tests.support.matrix_run import arguments
from tests.support.reference import Answer, chat, picture, reference_of, sound, tiny_checkpoint
from tests.support.tap import with_tap
from tests.support.tiny_text import write_chat_model


class Unrepeated:
    """One text."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._said: list[int] = []

    def push(self, token: int) -> bool:
        self._said.append(token)
        return False

    def edit(self) -> LogitsEdit:
        said, before = self._said, self._size - 1
        newest = said[len(said) - before :]
        again = {said[i] for i in range(before, len(said)) if said[i - before : i] == newest}
        ids = np.array(sorted(again), np.int64)
        return LogitsEdit(ids=ids, bias=np.full(len(ids), -np.inf, np.float32))


class NoRepeat(HistoryProcessor):
    def open(self, args: Mapping[str, object], vocab_size: int) -> HostLogitsProcessor:
        size = args["size"]
        assert isinstance(size, int)
        return Unrepeated(size)


@hookimpl
def omni_logits_processors() -> Sequence[LogitsProcessorEntry]:
    return [LogitsProcessorEntry(name="no_repeat", processor="tests.support.matrix_families:NoRepeat")]


# The text family in the matrix: a tiny Qwen3 with a tokenizer.

_QUESTIONS = (
    "hello",
    "the blue square and the green one, what is in the picture",
    "the blue square and the green one, what is in the",
    "the voice of my",
    "how many people are in the world and who will come to see them",
)


def matrix_plugins(*points: EntryPoint) -> Plugins:
    """The plugins at `points` and the matrix's own processors."""
    plugins = load_plugins([*points, EntryPoint("matrix", "tests.support.matrix_families", "omni")])
    for record in plugins.records:
        assert record.error is None, record.error
    return plugins


class TextFamily(Family):
    writer = "text"
    stages = ("text",)

    def __init__(self, folder: Path) -> None:
        self.folder = write_chat_model(folder)
        self._checkpoint = Checkpoint(self.folder)
        self._plugins = matrix_plugins(*own_entry_points("ar", "local", "text"))
        self.pipeline = resolve_pipeline(self._checkpoint, self._plugins).pipeline
        vocabulary = build_text_frontend(self._checkpoint).vocabulary()
        assert vocabulary is not None
        self.vocabulary = vocabulary
        self.ids: Sequence[Sequence[int]] = [vocabulary.encode(question) for question in _QUESTIONS]
        self.prompts = len(self.ids)

    def engine(self, device: Device, settings: Mapping[str, object]) -> Engine:
        plan = resolve_pipeline(self._checkpoint, self._plugins, [Layer("test", settings)])
        return build_engine(plan, self._checkpoint, self._plugins, device, EngineOptions(dtype="float32", graphs=True))

    def few(self, asked: str) -> Mapping[str, int]:
        return {"text": blocks_for_one(max(map(len, self.ids)), self.sets[asked]["text"])}

    def prepared(self, prompt: int, compiled: CompiledSampling, request_id: str, sample_index: int) -> EngineRequest:
        inputs = {"text": [Payload(plain_prompt(self.ids[prompt]))]}
        request = EngineRequest(request_id, frozenset({"text"}), inputs, sampling=compiled.sampling)
        return replace(request, rules=compiled.rules(), sample_index=sample_index)


# The Qwen3-Omni family in the matrix: a tiny one that hears, sees, writes and speaks; its codes are tapped.

SPOKEN = 8
TALKER_SETS: Mapping[str, SamplingParams] = {
    "talker defaults": SamplingParams(seed=9, max_tokens=SPOKEN),
    "talker, all together": SamplingParams(
        **SAMPLED,
        min_p=0.01,
        presence_penalty=1.0,
        frequency_penalty=0.5,
        bad_words_ids=((3,), (7, 9)),
        max_tokens=SPOKEN,
    ),
}
"""Of the talker; its text is as `GREEDY`."""
_GREEDY_TALKER = SamplingParams(temperature=0.0, max_tokens=SPOKEN)
_CHATS = (
    chat("hello"),
    chat("the blue square and the green one", picture(64, 64, 1), "what is it"),
    chat("the blue square and the green one", picture(64, 64, 1), "or this", voice="aiden"),
    chat(sound(0.5, 2), "who"),
    chat("what is in the picture", picture(32, 64, 3), voice="chelsie"),
)


class OmniFamily(Family):
    writer = "thinker"
    stages = ("thinker", "talker")
    prompts = len(_CHATS)

    def __init__(self) -> None:
        self._load(tiny_checkpoint(81, stop_gain=0.0, codec_stop_gain=0.0), _CHATS, "qwen3_omni", "vocoder")

    def _load(self, folder: Path, chats: Sequence[Chat], *kinds: str) -> None:
        """kinds: the family's plugin and those that it alone needs."""
        self.folder = folder
        self._checkpoint = Checkpoint(folder)
        own = own_entry_points("ar", "encoder", "local", *kinds)
        self._plugins = matrix_plugins(*own, EntryPoint("tap", "tests.support.tap", "omni"))
        self.pipeline = resolve_pipeline(self._checkpoint, self._plugins).pipeline
        frontend = build_frontend(self.pipeline, self._checkpoint)
        vocabulary = frontend.vocabulary()
        assert vocabulary is not None
        self.vocabulary = vocabulary
        self._prepared: Sequence[Prepared] = [frontend.prepare(asked) for asked in chats]

    @cached_property
    def sets(self) -> Mapping[str, Mapping[str, SamplingParams]]:
        texts = {name: {**stages, "talker": _GREEDY_TALKER} for name, stages in super().sets.items()}
        return texts | {name: {**texts[GREEDY], "talker": talker} for name, talker in TALKER_SETS.items()}

    def engine(self, device: Device, settings: Mapping[str, object]) -> Engine:
        pipeline = resolve_pipeline(self._checkpoint, self._plugins, [Layer("test", settings)]).pipeline
        plan = check_pipeline(with_tap(pipeline), self._plugins)
        return build_engine(plan, self._checkpoint, self._plugins, device, EngineOptions(dtype="float32", graphs=True))

    def few(self, asked: str) -> Mapping[str, int]:
        prompts = {"thinker": [one.prompt_tokens for one in self._prepared], "talker": self._talker_prompts}
        return {stage: blocks_for_one(max(prompts[stage]), self.sets[asked][stage]) for stage in self.stages}

    def prepared(self, prompt: int, compiled: CompiledSampling, request_id: str, sample_index: int) -> EngineRequest:
        one = self._prepared[prompt]
        sampling = {"talker": _GREEDY_TALKER} | dict(compiled.sampling)
        modalities = frozenset({"text", "audio", "codes"})
        request = EngineRequest(request_id, modalities, one.inputs, one.edges, sampling)
        return replace(request, rules=compiled.rules(), sample_index=sample_index)

    def answer(self, asked: str, prompt: int) -> Answer:
        """What transformers makes of it, stop strings aside."""
        compiled = self.compiled(asked)
        params = {stage: compiled.sampling[stage].with_defaults(self._defaults(stage)) for stage in self.stages}
        host_processors = compiled.rules().get("thinker", NO_RULES).host_processors
        thinker = arguments(params["thinker"], self._prepared[prompt].prompt_tokens, host_processors)
        # The talker is fed embeddings: all ids that its processors see are generated ones.
        talker = {**arguments(params["talker"], 0), "repetition_penalty": 1.0}
        given = {f"thinker_{name}": value for name, value in thinker.items()}
        given |= {f"talker_{name}": value for name, value in talker.items()}
        sampling = {
            "thinker": compiled.sampling["thinker"],
            "talker": msgspec.structs.replace(params["talker"], stop_token_ids=()),
        }
        asks: Chat = replace(_CHATS[prompt], sampling=sampling)
        return reference_of(self.folder).generate(asks, given)

    @property
    def _talker_prompts(self) -> list[int]:
        prompts = []
        for one in self._prepared:
            args = one.edges["thinker->talker"]
            assert isinstance(args, TextConditioningArgs | HiddenConditioningArgs)
            prompts.append(args.prompt.length)
        return prompts

    def _defaults(self, stage: str) -> SamplingParams:
        options = self.pipeline.stage(stage).options
        assert isinstance(options, ArOptions)
        return options.sampling
