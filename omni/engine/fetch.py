"""The checkpoint of a model that the user names, with the files of its family."""

from pathlib import Path

from omni.checkpoint import Checkpoint, resolve
from omni.plugin.manager import Plugins


def open_checkpoint(model: str | Path, plugins: Plugins, *, weights: bool = True) -> Checkpoint:
    """The checkpoint in a folder, or in a repository on the Hugging Face hub, downloaded if necessary.

    config.json determines the family, and `ModelFamily.files` further files; without a family no weights are
    downloaded.
    weights: False downloads none. Raises CheckpointError, and PluginError if two families claim the model type.
    """
    checkpoint = Checkpoint(resolve(model, weights=False))
    family = plugins.family_of(str(checkpoint.config.get("model_type", "")))
    if family is None or not (weights or family.files):
        return checkpoint
    return Checkpoint(resolve(model, weights=weights, files=family.files))
