"""The conformance suite of vocoders passes models that keep the contract, and finds each broken promise."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from omni.checkpoint import Checkpoint
from omni.device.cpu import CpuDevice
from omni.errors import ConfigError
from omni.pipeline import Stage
from omni.stage import StageContext
from omni.testing import check_vocoder
from omni_vocoder.options import VocoderOptions
from tests.examples.plain_speech import PlainSpeech, plugins, write_tiny
from tests.omni.testing.kit import vocoder_faults
from tests.omni.testing.kit.finding import finds
from tests.omni.testing.kit.vocoder_faults import CODES, SmallVocoder


def test_a_small_vocoder_keeps_the_contract():
    check_vocoder(SmallVocoder(), codebook_size=CODES)


def test_check_vocoder_passes_the_vocoder_of_a_family(tmp_path: Path):
    checkpoint = Checkpoint(write_tiny(tmp_path / "model"))
    assert plugins().families["plain_tts"]
    from plain_tts.vocoder import build

    stage = Stage(name="vocoder", kind="vocoder", model="plain_tts.vocoder:build", options=VocoderOptions())
    with torch.inference_mode():
        model = build(
            StageContext(
                stage=stage,
                options=stage.options,
                checkpoint=checkpoint,
                device=CpuDevice(),
                dtype=torch.float32,
                load_format="auto",
            )
        )
    plain = PlainSpeech(checkpoint.path)

    def whole(codes_NG: Tensor) -> Tensor:
        return torch.from_numpy(plain.sound(codes_NG.tolist()))

    check_vocoder(model, codebook_size=checkpoint.config["codebook_size"], whole=whole, frames=20)


@pytest.mark.parametrize(
    ("broken", "found_by", "message"),
    [
        (vocoder_faults.Forgets, "chunks_of_any_size", "carry each layer.s context of earlier frames"),
        (vocoder_faults.ForgetsToStore, "chunks_of_any_size", "is off by .*carry each layer"),
        (vocoder_faults.NormalizesTheChunk, "chunks_of_any_size", "no normalization by its length or peak"),
        (vocoder_faults.KeepsOneState, "batches", "use rows_B for the state of each row"),
        (vocoder_faults.NormalizesTheBatch, "batches", "reduce nothing over the batch"),
        (vocoder_faults.KeepsState, "interleaved|batches", "none in the module|rows_B"),
        (vocoder_faults.DoesNotReset, "rows_reused", "clear its row in `reset`"),
        (
            vocoder_faults.KeepsAllFrames,
            "state_freed",
            "bytes more than after the first; .*no tensors of earlier chunks",
        ),
        (vocoder_faults.Grows, "state_freed", "allocate in `new_state` all that a row needs"),
        (vocoder_faults.MiscountsSamples, "one_pass", "make `samples` and `decode` agree"),
        (vocoder_faults.LeavesTheRange, "one_pass", r"finite and in \[-1, 1\]; clamp them"),
        (vocoder_faults.IsNoisy, "one_pass", r"in training mode gives other samples each time"),
        (vocoder_faults.DoesNotClamp, "unknown_codes", "clamp ids beyond the tables"),
        (vocoder_faults.AsksForAValue, "guarded", "nothing waits for the device .*no .item"),
        (vocoder_faults.ChangesItsInput, "one_pass", "clone codes_BNG before you write"),
        (vocoder_faults.IsMute, "one_pass", "decode gives sound: the peak of a waveform is 0.0e.00, .*make sound"),
        (vocoder_faults.HasNoRate, "declares", "sample_rate is a positive number, not 0; set it"),
    ],
)
def test_the_suite_finds_a_broken_vocoder(broken: type[SmallVocoder], found_by: str, message: str):
    with finds(found_by, f"vocoder contract broken: .*({message})"):
        check_vocoder(broken(), codebook_size=CODES)


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (SmallVocoder, {"frames": 5}, "frames: are 5; give 12 or more"),
        (
            SmallVocoder,
            {"whole": lambda codes_NG: torch.zeros(len(codes_NG))},
            "whole: the peak of a waveform is 0.0e.00, below",
        ),
    ],
)
def test_arguments_that_make_the_check_empty_are_refused(
    model: type[SmallVocoder], arguments: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        check_vocoder(model(), codebook_size=CODES, **arguments)
