"""On a GPU in float32, eager and captured: codes of all groups and waveforms are those of transformers on the CPU."""

from typing import Any

import pytest
import torch

from omni.checkpoint import Checkpoint
from omni.device import open_device
from omni.stage import StageContext
from omni_csm.mimi.encoder import build as build_encoder
from omni_csm.mimi.vocoder import build as build_vocoder
from omni_csm.pipeline import pipeline
from tests.support.csm_reference import assert_spoken, csm_reference_of, speak, tiny_csm, turn
from tests.support.devices import no_synchronization
from tests.support.omni_engine import OmniEngine

pytestmark = pytest.mark.gpu
SHAPES: dict[str, dict[str, Any]] = {
    "four groups": {},
    "sixteen groups": {"groups": 16, "semantic": 2, "codebook_size": 128, "depth_layers": 3, "seed": 6},
    "sampled": {"sampled": True, "seed": 5},
    "ends": {"sampled": True, "seed": 7, "stop_gain": 3.0, "groups": 2, "codebook_size": 32},
}
ASKED = [
    speak("hello", frames=30),
    speak(turn("user", "how are you", 0.9, 1), turn("assistant", "well", 2.3, 2), "and you", frames=50),
    speak(turn("user", "who", 0.12, 3), "me", voice="1", frames=3),
    speak("so", frames=12, temperature=0.9, top_k=10, seed=3),
    speak("on", frames=12, temperature=0.9, top_k=10, code_temperature=0.5, code_top_p=0.9, seed=11),
    speak("on", frames=20, temperature=0.9, top_k=10, code_temperature=1.2, seed=8, min_tokens=6),
    speak(turn("user", "and", 1.0, 4), "then", frames=25, temperature=0.9, top_k=10, seed=4),
]
SETTINGS = {
    "as shipped": {},
    "few rows, four ahead": {"backbone.max_num_seqs": 2, "backbone.max_in_flight": 4, "vocoder.max_num_seqs": 2},
    "few blocks": {"backbone.num_blocks": 40, "backbone.block_size": 4, "backbone.max_num_batched_tokens": 32},
}


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_speech_is_that_of_transformers(shape: str, settings: str, graphs: bool) -> None:
    folder = tiny_csm(**SHAPES[shape])
    asked = [one for one in ASKED if shape in ("sampled", "ends") or not one.sampling["backbone"].temperature]
    engine = OmniEngine(folder, SETTINGS[settings], "cuda", graphs=graphs)
    for result, one in zip(engine.run(asked, range(0, 4 * len(asked), 4)), asked, strict=True):
        spoken = csm_reference_of(folder).speech(one)
        assert_spoken(result, spoken)
        assert result.reasons["backbone"] == ("stop" if spoken.ended else "length")


@torch.inference_mode()
def test_the_codec_asks_the_device_nothing() -> None:
    checkpoint = Checkpoint(tiny_csm())
    stages = pipeline(checkpoint)
    contexts = [
        StageContext(
            stage=stage,
            options=stage.options,
            checkpoint=checkpoint,
            device=open_device("cuda"),
            dtype=torch.float32,
            load_format="auto",
        )
        for stage in (stages.stage("vocoder"), stages.stage("audio_encoder"))
    ]
    vocoder, encoder = build_vocoder(contexts[0]), build_encoder(contexts[1])
    state, rows = vocoder.new_state(3), torch.tensor([2, 0], device="cuda")
    codes = torch.randint(64, (2, 5, 4), device="cuda")
    samples = torch.zeros(7000, device="cuda")
    torch.cuda.synchronize()
    with no_synchronization():
        vocoder.reset(state, rows)
        vocoder.decode(codes, state, rows, True)
        encoder.encode({"samples": samples}, (3000, 4000))
