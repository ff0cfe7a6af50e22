"""Registers the text family."""

from omni.hookspecs import hookimpl
from omni.plugin.entries import DrafterEntry, ModelFamily


@hookimpl
def omni_model_families() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="text",
            model_types=("qwen3", "qwen3_moe"),
            pipeline="omni_text.pipeline:pipeline",
            tiny="omni_text.tiny:write_tiny",
        ),
    ]


@hookimpl
def omni_drafters() -> list[DrafterEntry]:
    return [DrafterEntry(name="draft_model", drafter="omni_text.draft_model:build")]
