"""Faults that the parity tests would miss if the tiny model were degenerate: each changes what is said."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from omni_ar.model import Codes, PlacedEmbedding, PromptTokens
from omni_csm.backbone import Backbone
from omni_csm.config import CsmConfig, read_config
from omni_csm.depth import DepthDecoder, FrameEmbedding
from tests.support.csm_reference import csm_reference_of, speak, tiny_csm, turn
from tests.support.omni_engine import OmniEngine
from tests.support.reference import with_sampling
from tests.support.tiers import few

Patch = Callable[[pytest.MonkeyPatch], None]


def _one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group reads the first one's entries."""
    code = FrameEmbedding.code
    monkeypatch.setattr(FrameEmbedding, "code", lambda self, codes_R, group: code(self, codes_R, 0))


def _forgotten_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    def embed_prompt(self: Backbone, prompt: PromptTokens) -> Tensor:
        return real(self, PromptTokens(prompt.columns_CT, ()))

    real = Backbone.embed_prompt
    monkeypatch.setattr(Backbone, "embed_prompt", embed_prompt)


def _reversed_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    def embed_prompt(self: Backbone, prompt: PromptTokens) -> Tensor:
        backwards = [
            PlacedEmbedding(part.name, part.tokens_n, {"codes": part.tensors["codes"].flip(0)})
            for part in prompt.embeddings
        ]
        return real(self, PromptTokens(prompt.columns_CT, backwards))

    real = Backbone.embed_prompt
    monkeypatch.setattr(Backbone, "embed_prompt", embed_prompt)


def _end_of_sound_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    _reconfigured(monkeypatch, lambda config: msgspec.structs.replace(config, audio_eos=-1))


def _unscaled_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"rope_scaling": None, "rope_theta": 100.0}
    _reconfigured(
        monkeypatch,
        lambda config: msgspec.structs.replace(config, depth=msgspec.structs.replace(config.depth, **plain)),
    )


def _unscaled_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"rope_scaling": None}
    _reconfigured(
        monkeypatch,
        lambda config: msgspec.structs.replace(config, backbone=msgspec.structs.replace(config.backbone, **plain)),
    )


def _cold_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is drawn from as if it were colder than was asked for."""
    predict: Callable[..., Codes] = DepthDecoder.predict

    def predict_cold(self: DepthDecoder, *arguments: Any) -> Codes:
        *inputs, draw = arguments
        return predict(self, *inputs, lambda logits_RV, group: draw(logits_RV / 0.9, group))

    monkeypatch.setattr(DepthDecoder, "predict", predict_cold)


def _reconfigured(monkeypatch: pytest.MonkeyPatch, change: Callable[[CsmConfig], CsmConfig]) -> None:
    monkeypatch.setattr("omni_csm.backbone.read_config", lambda checkpoint: change(read_config(checkpoint)))


FAULTS: list[Patch] = [
    _one_table,
    _forgotten_sound,
    _reversed_sound,
    _end_of_sound_as_text,
    _unscaled_depth,
    _unscaled_backbone,
    _cold_depth,
]


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


@pytest.mark.parametrize("fault", few(1, FAULTS), ids=lambda fault: fault.__name__.strip("_"))
def test_planted_fault_changes_what_is_said(
    monkeypatch: pytest.MonkeyPatch, folder: Path, right: Tensor, fault: Patch
) -> None:
    fault(monkeypatch)
    assert not torch.equal(OmniEngine(folder).answer(ASKED).codes, right)


def test_what_is_said_depends_on_who_says_it() -> None:
    engine = OmniEngine(tiny_csm())
    turns = (turn("user", "how are you", 0.6, 8), "I am well")
    answers = [engine.answer(speak(*turns, voice=voice)).codes for voice in ("0", "1", "2")]
    assert not torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[1], answers[2])
