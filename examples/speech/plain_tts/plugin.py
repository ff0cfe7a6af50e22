"""The plugin's hooks, found by entry point."""

from omni import hookimpl
from omni.plugin import ModelFamily


@hookimpl
def omni_model_families() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="plain_tts",
            model_types=("plain_tts",),
            pipeline="plain_tts.pipeline:pipeline",
            tiny="plain_tts.tiny:write",
        )
    ]
