"""The code predictor against transformers' `code_predictor.generate`, one frame at a time."""

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper

from omni.checkpoint import Checkpoint
from omni.device import open_device
from omni.stage import StageContext
from omni_ar.sampling.rng import gumbel
from omni_ar.sampling.warpers import warp
from omni_qwen3_omni.pipeline import pipeline
from omni_qwen3_omni.talker import Talker, build
from tests.support.reference import GroupNoise, Reference, reference_of, tiny_checkpoint

ROWS = 6
SHAPES = [
    {"groups": 4},
    {"groups": 2, "predictor_layers": 1},
    {"groups": 16, "codebook_size": 256, "predictor_layers": 3, "predictor_heads": 4, "predictor_kv_heads": 2},
]
Pair = tuple[Talker, Reference]


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: f"{shape['groups']} groups")
def pair(request: pytest.FixtureRequest) -> Pair:
    folder = tiny_checkpoint(71, **request.param)
    checkpoint = Checkpoint(folder)
    stage = pipeline(checkpoint).stage("talker")
    context = StageContext(stage, stage.options, checkpoint, open_device("cpu"), torch.float32, "auto")
    return build(context), reference_of(folder)


def _frames(talker: Talker) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden_RD = torch.randn(ROWS, talker.shape.hidden_width, generator=generator)
    return hidden_RD, torch.randint(talker.shape.vocab_size - 1024, (ROWS,), generator=generator)


def _expected(
    reference: Reference, hidden_D: Tensor, code0: Tensor, warpers: LogitsProcessorList
) -> tuple[Tensor, Tensor]:
    """Codes `[G]` and the sum of their embeddings `[D]`."""
    talker = reference.model.talker
    embedded_D = talker.get_input_embeddings()(code0)
    result_1G = talker.code_predictor.generate(
        inputs_embeds=torch.stack([hidden_D, embedded_D])[None],
        max_new_tokens=reference.model.config.talker_config.num_code_groups - 1,
        do_sample=False,
        logits_processor=warpers,
    )
    tables = talker.code_predictor.get_input_embeddings()
    residual = [table(code) for table, code in zip(tables, result_1G[0], strict=True)]
    return torch.cat([code0[None], result_1G[0]]), embedded_D + torch.stack(residual).sum(0)


@torch.inference_mode()
def test_greedy_frames_are_those_of_transformers(pair: Pair) -> None:
    talker, reference = pair
    hidden_RD, code0_R = _frames(talker)

    def greedy(logits_RV: Tensor, group: int) -> Tensor:
        return logits_RV.argmax(-1)

    codes = talker.predict_codes(hidden_RD, code0_R, greedy)

    for row in range(ROWS):
        expected_G, next_D = _expected(reference, hidden_RD[row], code0_R[row], LogitsProcessorList())
        assert codes.codes_RG[row].tolist() == expected_G.tolist()
        torch.testing.assert_close(codes.next_RD[row], next_D, rtol=1e-5, atol=1e-5)
    assert len({tuple(frame) for frame in codes.codes_RG.tolist()}) == ROWS


@torch.inference_mode()
def test_sampled_frames_are_those_of_transformers_with_the_same_noise(pair: Pair) -> None:
    talker, reference = pair
    hidden_RD, code0_R = _frames(talker)
    seed_R, position_R = torch.arange(ROWS) + 40, torch.arange(ROWS) * 3

    def draw(logits_RV: Tensor, group: int) -> Tensor:
        ones_R = torch.ones(ROWS)
        warped_RV = warp(logits_RV, ones_R, torch.full((ROWS,), 50), ones_R.double() * 0.8)
        noise_RV = gumbel(seed_R, torch.zeros_like(seed_R), position_R, group, 0, logits_RV.shape[1])
        return (warped_RV + noise_RV).argmax(-1)

    codes = talker.predict_codes(hidden_RD, code0_R, draw)

    for row in range(ROWS):
        noise = GroupNoise(int(seed_R[row]), int(position_R[row]))
        warpers = LogitsProcessorList([TopKLogitsWarper(50), TopPLogitsWarper(0.8), noise])
        expected_G, _ = _expected(reference, hidden_RD[row], code0_R[row], warpers)
        assert codes.codes_RG[row].tolist() == expected_G.tolist()


@torch.inference_mode()
def test_a_frame_does_not_depend_on_its_batch(pair: Pair) -> None:
    talker, _ = pair
    hidden_RD, code0_R = _frames(talker)

    def greedy(logits_RV: Tensor, group: int) -> Tensor:
        return logits_RV.argmax(-1)

    together = talker.predict_codes(hidden_RD, code0_R, greedy).codes_RG
    alone = [talker.predict_codes(hidden_RD[i : i + 1], code0_R[i : i + 1], greedy).codes_RG for i in range(ROWS)]

    assert together.tolist() == torch.cat(alone).tolist()
