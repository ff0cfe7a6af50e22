"""The Qwen2.5-Omni family in the matrix: a tiny one whose talker hears the thinker, and whose speech is denoised."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from omni.device import Device
from omni.engine import Engine, EngineRequest
from omni.frontend.compile import CompiledSampling
from omni.payload import Payload
from omni.sampling import SamplingParams
from support.heard_omni import NOISE_TM, SHAPES, answer
from support.matrix_omni import SPOKEN, TALKER_SETS, OmniFamily
from support.matrix_sets import TOKENS
from support.reference import Answer
from support.reference_chats import chat, picture, sound
from support.tiny_qwen2_5_omni import tiny_folder

CHATS = tuple(
    chat(*parts, voice=voice, max_text=TOKENS, max_codes=SPOKEN)
    for voice, *parts in (
        ("Chelsie", "hello"),
        ("Chelsie", "the blue square and the green one", picture(64, 64, 1), "what is it"),
        ("Ethan", "the blue square and the green one", picture(64, 64, 1), "or this"),
        ("Ethan", sound(0.5, 2), "who"),
        ("Chelsie", "what is in the picture", picture(32, 64, 3)),
    )
)
ASKED = ("greedy", *TALKER_SETS)


class HeardFamily(OmniFamily):
    prompts = len(CHATS)

    def __init__(self) -> None:
        self._load(tiny_folder(**SHAPES["as written"]), CHATS, "qwen2_5_omni", "diffusion")

    @cached_property
    def sets(self) -> Mapping[str, Mapping[str, SamplingParams]]:
        sets = super().sets
        return {name: sets[name] for name in (*ASKED, "seeded")}

    def engine(self, device: Device, settings: Mapping[str, object]) -> Engine:
        return super().engine(device, {"token2wav.num_steps": 1, **settings})

    def prepared(self, prompt: int, compiled: CompiledSampling, request_id: str, sample_index: int) -> EngineRequest:
        request = super().prepared(prompt, compiled, request_id, sample_index)
        (voice,) = request.inputs["token2wav"]
        return replace(request, inputs={**request.inputs, "token2wav": [Payload(voice.meta, {"noise": NOISE_TM})]})

    def greedy_answer(self, prompt: int) -> Answer:
        """transformers' own."""
        return answer(self.folder, CHATS[prompt])
