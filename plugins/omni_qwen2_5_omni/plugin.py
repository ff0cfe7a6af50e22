"""Registers the Qwen2.5-Omni family."""

from omni.hookspecs import hookimpl
from omni.plugin.entries import ModelFamily


@hookimpl
def omni_model_families() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="qwen2_5_omni",
            model_types=("qwen2_5_omni",),
            pipeline="omni_qwen2_5_omni.pipeline:pipeline",
            files=("spk_dict.pt",),
            tiny="omni_qwen2_5_omni.tiny:write_tiny",
        )
    ]
