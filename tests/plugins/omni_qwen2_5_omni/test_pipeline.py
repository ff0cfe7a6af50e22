"""The family's graph, as the framework finds and checks it."""

import pytest

from omni.checkpoint import Checkpoint
from omni.engine import resolve_pipeline
from omni_ar.options import ArOptions
from support.tiny_omni import tiny_plugins
from support.tiny_qwen2_5_omni import tiny_folder


@pytest.mark.parametrize("talker", [True, False])
def test_stages_are_those_of_the_checkpoint(talker: bool) -> None:
    pipeline = resolve_pipeline(Checkpoint(tiny_folder(talker=talker)), tiny_plugins()).pipeline
    names = ["audio_encoder", "vision_encoder", "thinker", *["talker", "token2wav"][: 2 * talker]]
    assert [stage.name for stage in pipeline.stages] == names
    assert [output.modality for output in pipeline.outputs] == ["text", "audio"][: 1 + talker]


def test_ends_and_codes_without_sound() -> None:
    pipeline = resolve_pipeline(Checkpoint(tiny_folder()), tiny_plugins()).pipeline
    thinker, talker = (pipeline.stage(name).options for name in ("thinker", "talker"))
    assert isinstance(thinker, ArOptions)
    assert isinstance(talker, ArOptions)
    assert (
        list(thinker.sampling.stop_token_ids or ()) == Checkpoint(tiny_folder()).generation_config["eos_token_id"][:1]
    )
    # Codes 0 to 40 have a sound, of which 40 is one that ends; 41 begins, 42 ends, 43 and 44 mean nothing here.
    assert set(talker.sampling.stop_token_ids or ()) == {40, 42}
    assert set(talker.sampling.suppress_token_ids or ()) == {41, 43, 44}
