"""Faults that the parity tests would miss if the tiny model were degenerate: each changes the speech."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from omni_ar.model import Codes, PlacedEmbedding, PromptTokens
from omni_csm.backbone import Backbone
from omni_csm.config import CsmConfig, read_config
from omni_csm.depth import DepthDecoder, FrameEmbedding
from tests.plugins.planting import Plant, wrapped
from tests.support.csm_reference import csm_reference_of, speak, tiny_csm, turn
from tests.support.omni_engine import OmniEngine
from tests.support.reference import with_sampling
from tests.support.tiers import few


def _prompt_with(embeddings: Callable[[Sequence[PlacedEmbedding]], Sequence[PlacedEmbedding]]) -> Plant:
    return wrapped(
        Backbone,
        "embed_prompt",
        lambda embed, model, prompt: embed(model, PromptTokens(prompt.columns_CT, embeddings(prompt.embeddings))),
    )


def _backwards(part: PlacedEmbedding) -> PlacedEmbedding:
    return PlacedEmbedding(part.name, part.tokens_n, {"codes": part.tensors["codes"].flip(0)})


def _reconfigured(change: Callable[[CsmConfig], CsmConfig]) -> Plant:
    changed = lambda checkpoint: change(read_config(checkpoint))  # noqa: E731
    return lambda patch: patch.setattr("omni_csm.backbone.read_config", changed)


def _cold(predict: Callable[..., Codes], decoder: DepthDecoder, *arguments: Any) -> Codes:
    """Codes are drawn at a lower temperature than the request's."""
    *inputs, draw = arguments
    return predict(decoder, *inputs, lambda logits_RV, group: draw(logits_RV / 0.9, group))


FAULTS: dict[str, Plant] = {
    "every group reads the first table": wrapped(
        FrameEmbedding, "code", lambda code, embedding, codes_R, group: code(embedding, codes_R, 0)
    ),
    "forgotten sound": _prompt_with(lambda embeddings: ()),
    "reversed sound": _prompt_with(lambda embeddings: [_backwards(part) for part in embeddings]),
    "end of sound as text": _reconfigured(lambda config: replace(config, audio_eos=-1)),
    "unscaled depth": _reconfigured(
        lambda config: replace(config, depth=replace(config.depth, rope_scaling=None, rope_theta=100.0))
    ),
    "unscaled backbone": _reconfigured(
        lambda config: replace(config, backbone=replace(config.backbone, rope_scaling=None))
    ),
    "cold depth": wrapped(DepthDecoder, "predict", _cold),
}


ASKED = speak(turn("user", "how are you", 0.6, 8), "I am well", temperature=0.9, top_k=10, seed=0, frames=25)


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_csm(sampled=True, seed=5)


@pytest.fixture(scope="module")
def right(folder: Path) -> Tensor:
    codes = OmniEngine(folder).answer(ASKED).codes
    assert torch.equal(
        codes[:, :12], csm_reference_of(folder).speech(with_sampling(ASKED, "backbone", max_tokens=12)).codes
    )
    return codes


@pytest.mark.parametrize("fault", few(1, FAULTS))
def test_a_planted_fault_changes_tokens_or_codes(
    monkeypatch: pytest.MonkeyPatch, folder: Path, right: Tensor, fault: str
) -> None:
    FAULTS[fault](monkeypatch)
    assert not torch.equal(OmniEngine(folder).answer(ASKED).codes, right)


def test_the_codes_depend_on_the_voice() -> None:
    engine = OmniEngine(tiny_csm())
    turns = (turn("user", "how are you", 0.6, 8), "I am well")
    answers = [engine.answer(speak(*turns, voice=voice)).codes for voice in ("0", "1", "2")]
    assert not torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[1], answers[2])
