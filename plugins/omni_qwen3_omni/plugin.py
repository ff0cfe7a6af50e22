"""Registers the Qwen3-Omni family."""

from omni.hookspecs import hookimpl
from omni.plugin.entries import ModelFamily


@hookimpl
def omni_model_families() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="qwen3_omni",
            model_types=("qwen3_omni_moe",),
            pipeline="omni_qwen3_omni.pipeline:pipeline",
            tiny="omni_qwen3_omni.tiny:write_tiny",
        )
    ]
