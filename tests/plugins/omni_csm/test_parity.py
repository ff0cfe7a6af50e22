"""Requests through the engine against transformers' `generate`: codes of all groups equal, waveform within 1e-4 of its peak."""

from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from omni.frontend.base import AudioPart, Chat
from omni_csm.mimi.encoder import AudioEncoder
from tests.support.csm_reference import Spoken, assert_spoken, csm_reference_of, speak, tiny_csm, turn
from tests.support.omni_engine import OmniEngine, Result
from tests.support.tiers import SLOW, few

TOLERANCE = 1e-4
CASES: dict[str, Chat] = {
    "text": speak("hello"),
    "unusual text": speak("Grüße 你好\n\n  two  lines"),
    "another speaker": speak("hello", voice="1"),
    "a far speaker": speak(turn("user", "who is it", 0.5), "say it", voice="17"),
    "one turn": speak(turn("assistant", "I am well", 0.73), "how are you"),
    "three turns": speak(
        turn("user", "how are you", 0.4, 1),
        turn("assistant", "I am well", 1.1, 2),
        turn("user", "and now", 0.11, 3),
        "I will go on",
    ),
    "the same sound twice": speak(turn("user", "so", 0.4, 4), turn("user", "so", 0.4, 4), "again"),
    "long": speak("tell me more " * 6, frames=40),
}
SHAPES = {
    "sampled": {"sampled": True, "seed": 5},
    "sixteen groups": {
        "groups": 16,
        "semantic": 2,
        "codebook_size": 128,
        "depth_heads": 4,
        "depth_kv_heads": 2,
        "depth_layers": 3,
        "seed": 6,
    },
    "two groups, biases": {"groups": 2, "attention_bias": True, "layers": 2, "kv_heads": 4, "seed": 7},
}


def assert_same(result: Result, spoken: Spoken) -> None:
    assert_spoken(result, spoken)
    assert 0.05 < np.abs(spoken.wave).max() < 0.95, "the reference is silent or clipped"
    assert len({tuple(frame) for frame in result.frames}) > len(result.frames) // 2, "it says the same all the time"


@pytest.mark.parametrize("shape", SHAPES)
def test_parity_of_other_shapes(shape: str) -> None:
    folder = tiny_csm(**SHAPES[shape])
    asked = speak(turn("user", "how are you", 0.6, 8), "I am well")
    assert_same(OmniEngine(folder).answer(asked), csm_reference_of(folder).speech(asked))


WARM: dict[str, Any] = {"temperature": 0.9, "top_k": 10}
DRAWN: dict[str, dict[str, Any]] = {
    "as published": WARM,
    "hot first": {"temperature": 1.4, "top_k": 12, "top_p": 0.9},
    "hot others": WARM | {"code_temperature": 1.6, "code_top_k": 12},
    "cold others": WARM | {"code_temperature": 0.3},
    "few others": WARM | {"code_top_k": 20, "code_top_p": 0.6},
    "greedy others": WARM | {"code_temperature": 0.0},
    "greedy first": {"temperature": 0.0, "code_temperature": 1.1},
    "greedy": {"temperature": 0.0, "code_top_k": 3},
}


def test_sampled_parity_with_the_same_noise() -> None:
    """Each in its row of one batch."""
    folder, reference = tiny_csm(**SHAPES["sampled"]), csm_reference_of(tiny_csm(**SHAPES["sampled"]))
    words = (turn("user", "who is it", 0.6, 9), "it is me")
    asked = [speak(*words, frames=15, seed=2**40 + n % 3, **drawn) for n, drawn in enumerate(DRAWN.values())]
    results = OmniEngine(folder).run(asked, range(len(asked)))
    for result, one in zip(results, asked, strict=True):
        assert_same(result, reference.speech(one))
    assert len({tuple(result.frames) for result in results}) == len(asked)
    assert results[0].frames[0][0] == results[3].frames[0][0], "of one seed, and the first code is drawn alike"


@pytest.mark.parametrize(
    "settings",
    few(
        1,
        [
            {
                "backbone.num_blocks": 36,
                "backbone.block_size": 4,
                "backbone.prefix_cache": False,
                "vocoder.max_num_seqs": 2,
                "vocoder.chunk_frames": 3,
            },
            {"backbone.max_num_batched_tokens": 24, "backbone.block_size": 4, "backbone.max_in_flight": 4},
        ],
        SLOW,
    ),
    ids=["few blocks", "chunked"],
)
def test_parity_in_a_batch(settings: dict[str, object]) -> None:
    reference, cases = csm_reference_of(tiny_csm()), list(reversed(CASES.values()))
    engine = OmniEngine(tiny_csm(), settings)
    for result, asked in zip(engine.run(cases, arrivals=range(len(cases))), cases, strict=True):
        assert_same(result, reference.speech(asked))
    preempted = engine.engine.counters()["backbone"]["preemptions"]
    assert (preempted > 0) == ("backbone.num_blocks" in settings)


def test_the_codec_is_as_published_where_the_rest_is_in_half_precision() -> None:
    """Its inputs and outputs are codes, so its sound is that of transformers in full precision."""
    reference = csm_reference_of(tiny_csm()).model.codec_model
    engine = OmniEngine(tiny_csm(), dtype="bfloat16")
    heard: list[torch.Tensor] = []
    with mock.patch.object(AudioEncoder, "encode", _listened(heard)):
        result = engine.answer(CASES["one turn"])
    samples = next(part.samples for part in CASES["one turn"].messages[0].content if isinstance(part, AudioPart))
    with torch.no_grad():
        wave = reference.decode(result.codes[None]).audio_values[0, 0].numpy()
        codes_1GN = reference.encode(torch.from_numpy(np.asarray(samples))[None, None]).audio_codes
    assert [codes_nG.tolist() for codes_nG in heard] == [codes_1GN[0].T.tolist()]
    assert result.wave.shape == wave.shape
    assert np.abs(result.wave - wave).max() <= TOLERANCE * np.abs(wave).max()


def _listened(heard: list[torch.Tensor]) -> Callable[..., Mapping[str, torch.Tensor]]:
    encode = AudioEncoder.encode

    def encode_heard(self: AudioEncoder, *arguments: Any) -> Mapping[str, torch.Tensor]:
        outputs = encode(self, *arguments)
        heard.append(outputs["codes"])
        return outputs

    return encode_heard
