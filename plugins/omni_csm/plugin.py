"""Registers the CSM family."""

from omni.hookspecs import hookimpl
from omni.plugin.entries import ModelFamily


@hookimpl
def omni_model_families() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="csm",
            model_types=("csm",),
            pipeline="omni_csm.pipeline:pipeline",
            tiny="omni_csm.tiny:write_tiny",
        )
    ]
