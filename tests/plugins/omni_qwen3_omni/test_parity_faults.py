"""Faults planted into the plugin: each must show in the codes, or the parity tests would prove little."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.checkpoint import Checkpoint
from omni.frontend import chat as frontend
from omni_ar.layers import residual_sum
from omni_ar.layers.code_predictor import CodePredictor
from omni_ar.layers.deepstack import DeepstackModel
from omni_ar.model import Batch, Codes, PlacedEmbedding, PromptTokens
from omni_qwen3_omni import talker_prompt, thinker
from omni_qwen3_omni.config import OmniConfig, read_config
from omni_qwen3_omni.talker import Talker
from tests.plugins.planting import Plant, wrapped
from tests.support.omni_engine import OmniEngine, differences
from tests.support.reference import chat, picture, reference_of, says, sizes, sound, tiny_checkpoint, with_sampling
from tests.support.tiers import few

# accept_hidden_layer 2 of 4 layers lies among the deepstack layers.
FOLDER = sizes(seed=51, layers=4, deepstack=(0, 1, 2), stop_gain=0.0, codec_stop_gain=0.0)
ASKED = chat(
    says("system", "you are kind"),
    says("user", "hello"),
    says("assistant", "what is it"),
    says("user", picture(64, 96, 1), sound(0.7, 1), "which is it"),
    max_text=6,
    max_codes=24,
)


def _hidden_states_after_deepstack(patch: pytest.MonkeyPatch) -> None:
    def forward(self: DeepstackModel, x_TD: Tensor, batch: Batch) -> Tensor:
        cos, sin = self.decoder.rotary(batch.positions_PT, x_TD.dtype)
        for index, layer in enumerate(self.decoder.layers):
            x_TD = residual_sum(*layer(x_TD, None, cos, sin, batch.cache, batch.attention, batch.backend))
            for image in batch.embeddings:
                if "deepstack" in image.tensors and index < image.tensors["deepstack"].shape[0]:
                    tokens_n = image.tokens_n + batch.attention.num_decode
                    x_TD = x_TD.index_add(0, tokens_n, image.tensors["deepstack"][index])
            if index + 1 == self._hidden_layer and batch.payload is not None:
                batch.payload.store(x_TD)
        hidden_TD: Tensor = self.decoder.norm(x_TD)
        return hidden_TD

    patch.setattr(DeepstackModel, "forward", forward)


def _deepstack_level_left_out(level: int) -> Plant:
    def shallow(forward: Any, model: DeepstackModel, x_TD: Tensor, batch: Batch) -> Tensor:
        for embedding in batch.embeddings:
            if "deepstack" in embedding.tensors:
                embedding.tensors["deepstack"][level] = 0
        hidden_TD: Tensor = forward(model, x_TD, batch)
        return hidden_TD

    return wrapped(DeepstackModel, "forward", shallow)


def _wrong_accept_layer(checkpoint: Checkpoint) -> OmniConfig:
    config = read_config(checkpoint)
    assert config.talker is not None
    talker = msgspec.structs.replace(config.talker, accept_hidden_layer=config.talker.accept_hidden_layer + 1)
    return msgspec.structs.replace(config, talker=talker)


def _turns_kept(word: str) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        tokenizer = reference_of(tiny_checkpoint(**FOLDER)).processor.tokenizer
        roles = tokenizer.convert_tokens_to_ids(["user", word])

        def kept(user: int, ids: NDArray[np.int64], start: int) -> NDArray[np.bool_]:
            turn = np.maximum.accumulate(np.where(ids == start, np.arange(len(ids)), 0))
            role = ids[np.minimum(turn + 1, len(ids) - 1)]
            # The turn that is being written opens the talker's own prompt.
            kept: NDArray[np.bool_] = np.isin(role, roles) & (turn < turn[-1])
            return kept

        patch.setattr(talker_prompt, "in_turns_of", kept)

    return plant


def _flat_positions(ids: NDArray[np.int64], *args: object, **settings: object) -> tuple[NDArray[np.int64], int]:
    return np.stack([np.arange(len(ids))] * 3), len(ids)


def _prompt_with(embeddings: Callable[[Sequence[PlacedEmbedding]], Sequence[PlacedEmbedding]]) -> Plant:
    """Hidden states of the talker's prompt changed."""
    return wrapped(
        Talker,
        "embed_prompt",
        lambda embed, talker, prompt: embed(talker, PromptTokens(prompt.columns_CT, embeddings(prompt.embeddings))),
    )


def _frame_with(change: Callable[[CodePredictor, Codes], Codes]) -> Plant:
    """Codes of a frame changed as the predictor gives them."""
    return wrapped(
        CodePredictor, "predict", lambda predict, predictor, *given: change(predictor, predict(predictor, *given))
    )


FAULTS: dict[str, Plant] = {
    "no hidden states": _prompt_with(lambda embeddings: ()),
    "hidden states in reverse": _prompt_with(
        lambda embeddings: [PlacedEmbedding(s.name, s.tokens_n.flip(0), s.tensors) for s in embeddings]
    ),
    "hidden states after deepstack": _hidden_states_after_deepstack,
    "wrong accept layer": lambda patch: patch.setattr(thinker, "read_config", _wrong_accept_layer),
    "flat talker positions": lambda patch: patch.setattr(talker_prompt, "mrope_positions", _flat_positions),
    "flat thinker positions": lambda patch: patch.setattr(frontend, "mrope_positions", _flat_positions),
    "groups swapped": _frame_with(lambda _, codes: Codes(codes.codes_RG[:, [0, 2, 1, 3]], codes.next_RD)),
    "last group not heard by the talker": _frame_with(
        lambda predictor, codes: Codes(
            codes.codes_RG, codes.next_RD - predictor.model.codec_embedding[-1](codes.codes_RG[:, -1])
        )
    ),
    "system turn kept": _turns_kept("system"),
    "earlier answers kept": _turns_kept("assistant"),
    "first deepstack level left out": _deepstack_level_left_out(0),
}


def test_nothing_differs_without_a_fault() -> None:
    folder = tiny_checkpoint(**FOLDER)

    assert differences(OmniEngine(folder).answer(ASKED), reference_of(folder).answer(ASKED)) == set()


@pytest.mark.parametrize("fault", few(1, FAULTS))
def test_a_planted_fault_changes_the_codes(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_checkpoint(**FOLDER)
    FAULTS[fault](monkeypatch)

    assert "codes" in differences(OmniEngine(folder).answer(ASKED), reference_of(folder).answer(ASKED))


@pytest.mark.mutation
@pytest.mark.parametrize("level", [0, 1, 2])
def test_every_deepstack_level_is_seen(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels behind the accepted layer reach the talker by the text alone, so that is given time to change."""
    folder, asked = tiny_checkpoint(**FOLDER), with_sampling(ASKED, "thinker", max_tokens=60)
    _deepstack_level_left_out(level)(monkeypatch)

    assert differences(OmniEngine(folder).answer(asked), reference_of(folder).answer(asked))


def test_no_repetition_penalty_changes_the_codes() -> None:
    folder = tiny_checkpoint(**FOLDER)
    otherwise = with_sampling(ASKED, "talker", repetition_penalty=1.0)

    assert "codes" in differences(OmniEngine(folder).answer(otherwise), reference_of(folder).answer(ASKED))


def test_one_wrong_code_in_any_group_is_heard() -> None:
    """The vocoder takes every group: with one code changed, the waveforms differ by far more than the tolerance."""
    model = reference_of(tiny_checkpoint(**FOLDER)).model
    codes_1GN = torch.randint(64, (1, 4, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wave = model.code2wav(codes_1GN)
        for group in range(4):
            wrong = codes_1GN.clone()
            wrong[0, group, 7] = (wrong[0, group, 7] + 1) % 64
            assert (model.code2wav(wrong) - wave).abs().max() > 0.01 * wave.abs().max()
