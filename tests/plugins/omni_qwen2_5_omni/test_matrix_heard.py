"""The matrix on Qwen2.5-Omni: whatever the pressure, and whatever is in flight, text, codes and sound are the same.

What is said alone, one step at a time, is what transformers says; what is said in each cell of the matrix is that.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import pytest

from omni.device import Device
from omni.engine import Engine, EngineRequest
from omni.frontend.compile import CompiledSampling
from omni.payload import Payload
from omni.sampling import SamplingParams
from tests.plugins.omni_qwen2_5_omni.heard_omni import NOISE_TM, SHAPES, answer
from tests.support.matrix import TOKENS, Cell, covering
from tests.support.matrix_families import SPOKEN, TALKER_SETS, OmniFamily
from tests.support.matrix_run import run_cell, small_party
from tests.support.reference import Answer, chat, picture, sound
from tests.support.tiers import chosen
from tests.support.tiny_qwen2_5_omni import tiny_folder

# The Qwen2.5-Omni family in the matrix: a tiny one whose talker hears the thinker, and whose speech is denoised.

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


CELLS = covering(ASKED)
ALWAYS = (
    Cell(4, few_blocks=True, tiny_budget=True, cached=True, captured=True, asked="talker defaults"),
    Cell(2, few_blocks=True, tiny_budget=False, cached=False, captured=False, asked="greedy"),
)


@pytest.fixture(scope="module")
def family() -> HeardFamily:
    return HeardFamily()


@pytest.mark.parametrize("prompt", range(HeardFamily.prompts))
def test_alone_it_says_what_transformers_says(family: HeardFamily, prompt: int) -> None:
    told, answer = family.alone("greedy", prompt), family.greedy_answer(prompt)
    assert told.tokens == answer.ids
    assert told.codes == [tuple(frame) for frame in answer.codes.T.tolist()]


@pytest.mark.parametrize(
    "cell",
    chosen(ALWAYS[:1], [*ALWAYS, *CELLS]),
    ids=str,
)
def test_each_request_is_told_what_it_is_told_alone(family: HeardFamily, cell: Cell) -> None:
    run_cell(family, cell, small_party)
