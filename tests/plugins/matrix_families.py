"""The model families that the matrix runs on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path

import msgspec
from transformers import Qwen3ForCausalLM

from omni.engine import Plan, check_pipeline
from omni.frontend.base import Prepared
from omni.frontend.build import build_frontend
from omni.payload import Payload
from omni.sampling import NO_RULES, HostLogitsProcessor, SamplingParams
from omni_ar.text_conditioning import TextConditioningArgs
from omni_text.frontend import build as build_text_frontend
from tests.plugins.matrix import GREEDY, PLAYED, SAMPLED, Family
from tests.plugins.matrix_run import arguments, generated
from tests.support.ar_driver import plain_prompt
from tests.support.reference import chat, picture, reference_of, sound, tiny_checkpoint
from tests.support.tap import with_tap
from tests.support.tiny_text import write_chat_model

Said = tuple[list[int], list[tuple[int, ...]] | None]


class TextFamily(Family):
    """A tiny Qwen3 with a tokenizer. layers: their number."""

    writer = "text"
    stages = ("text",)
    layers = 2
    _QUESTIONS = (
        "hello",
        "the blue square and the green one, what is in the picture",
        "the blue square and the green one, what is in the",
        "the voice of my",
        "how many people are in the world and who will come to see them",
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(write_chat_model(folder, self.layers), "ar", "local", "text")
        vocabulary = build_text_frontend(self.checkpoint).vocabulary()
        assert vocabulary is not None
        self.vocabulary = vocabulary
        self.ids = [vocabulary.encode(question) for question in self._QUESTIONS]
        self.prompts = [Prepared({"text": [Payload(plain_prompt(ids))]}, prompt_tokens=len(ids)) for ids in self.ids]

    @cached_property
    def model(self) -> Qwen3ForCausalLM:
        return Qwen3ForCausalLM.from_pretrained(self.folder)

    def said(self, asked: str, prompt: int) -> Said:
        params, host_processors = resolved(self, asked)
        given = arguments(params, len(self.ids[prompt]), host_processors)
        return generated(self.model, self.ids[prompt], params.stop_token_ids or (), given), None


def resolved(family: Family, asked: str) -> tuple[SamplingParams, Sequence[HostLogitsProcessor]]:
    """The writer's parameters over its stage's own, and the host processors that come with them."""
    compiled = family.compiled(asked)
    params = compiled.sampling[family.writer].with_defaults(family.defaults(family.writer))
    return params, family.compiler.host_rules(compiled).get(family.writer, NO_RULES).host_processors


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


class OmniFamily(Family):
    """A tiny Qwen3-Omni with sound, pictures, text and speech; the test reads its codes too. layers: of the thinker."""

    writer = "thinker"
    stages = ("thinker", "talker")
    layers = 2
    modalities = frozenset({"text", "audio", "codes"})
    asked = (*PLAYED, *TALKER_SETS)
    also: Mapping[str, SamplingParams] = {"talker": SamplingParams(temperature=0.0, max_tokens=SPOKEN)}
    chats = (
        chat("hello"),
        chat("the blue square and the green one", picture(64, 64, 1), "what is it"),
        chat("the blue square and the green one", picture(64, 64, 1), "or this", voice="aiden"),
        chat(sound(0.5, 2), "who"),
        chat("what is in the picture", picture(32, 64, 3), voice="chelsie"),
    )

    def __init__(self, folder: Path) -> None:
        tiny = tiny_checkpoint(81, layers=self.layers, stop_gain=0.0, codec_stop_gain=0.0)
        super().__init__(tiny, "ar", "encoder", "local", "qwen3_omni", "text", "vocoder", tap="tests.support.tap")
        frontend = build_frontend(self.pipeline, self.checkpoint)
        vocabulary = frontend.vocabulary()
        assert vocabulary is not None
        self.vocabulary = vocabulary
        self.prompts = [frontend.prepare(asked) for asked in self.chats]

    @cached_property
    def sets(self) -> Mapping[str, Mapping[str, SamplingParams]]:
        texts = super().sets
        return {**texts, **{name: {**texts[GREEDY], "talker": talker} for name, talker in TALKER_SETS.items()}}

    def change(self, plan: Plan) -> Plan:
        return check_pipeline(with_tap(plan.pipeline), self._plugins)

    def lengths(self, stage: str) -> list[int]:
        if stage == self.writer:
            return super().lengths(stage)
        args = [one.edges["thinker->talker"] for one in self.prompts]
        return [one.prompt.length for one in args if isinstance(one, TextConditioningArgs)]

    def said(self, asked: str, prompt: int) -> Said:
        params, host_processors = resolved(self, asked)
        thinker = arguments(params, self.prompts[prompt].prompt_tokens, host_processors)
        sampling = self.compiled(asked).sampling
        # The talker is fed embeddings: all ids that its processors see are generated ones.
        spoken = sampling["talker"].with_defaults(self.defaults("talker"))
        talker = {**arguments(spoken, 0), "repetition_penalty": 1.0}
        given = {f"thinker_{name}": value for name, value in thinker.items()}
        given |= {f"talker_{name}": value for name, value in talker.items()}
        stops = {**sampling, "talker": msgspec.structs.replace(spoken, stop_token_ids=())}
        answer = reference_of(self.folder).generate(replace(self.chats[prompt], sampling=stops), given)
        return answer.ids, [tuple(frame) for frame in answer.codes.T.tolist()]


class DeepTextFamily(TextFamily):
    layers = 4


class DeepOmniFamily(OmniFamily):
    layers = 4


FAMILIES: Mapping[str, type[TextFamily | OmniFamily]] = {
    "text": TextFamily,
    "qwen3_omni": OmniFamily,
}
DEEP: Mapping[str, type[TextFamily | OmniFamily]] = {
    "deep text": DeepTextFamily,
    "deep qwen3_omni": DeepOmniFamily,
}
"""The same with a writer of more layers, for stages with up to four layer ranges."""


@cache
def family_in(folder: Path, name: str) -> Family:
    """folder: for checkpoints that tests share nowhere else."""
    return {**FAMILIES, **DEEP}[name](folder / name)
