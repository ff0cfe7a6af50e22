"""Imports of an engine's process, made before the user's process sends the model to load."""

import logging
from contextlib import suppress
from pathlib import Path

from omni.checkpoint import Checkpoint
from omni.engine import PipelineChoice, resolve_pipeline
from omni.plugin.manager import load_plugins


def import_code(model: str, family: str | None = None) -> None:
    """Imports the code of a model's stages: resolves its pipeline, without settings. Raises and logs nothing: loading repeats this
    with settings, and reports errors.

    model: the checkpoint's folder. family: as in `PipelineChoice`.
    """
    logging.disable()
    try:
        with suppress(BaseException):  # a plugin may raise anything
            resolve_pipeline(Checkpoint(Path(model)), load_plugins(), (), PipelineChoice(family=family))
    finally:
        logging.disable(logging.NOTSET)
