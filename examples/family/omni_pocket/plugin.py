"""The plugin's hooks, found by entry point. Imports no torch."""

from omni import hookimpl
from omni.plugin import ModelFamily


@hookimpl
def omni_model_families() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="pocket",
            model_types=("pocket",),
            pipeline="omni_pocket.pipeline:pipeline",
            tiny="omni_pocket.tiny:write",
        )
    ]
