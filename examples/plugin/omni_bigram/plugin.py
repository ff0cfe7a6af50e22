"""The plugin's hooks, found by entry point."""

from omni import hookimpl
from omni.plugin import ModelFamily


@hookimpl
def omni_model_families() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="bigram",
            model_types=("bigram",),
            pipeline="omni_bigram.pipeline:pipeline",
            tiny="omni_bigram.tiny:write",
        )
    ]
