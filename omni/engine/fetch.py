"""From what a user calls a model to its checkpoint, with all that its family needs."""

from pathlib import Path

from omni.checkpoint import Checkpoint, resolve
from omni.plugin.manager import Plugins


def open_checkpoint(model: str | Path, plugins: Plugins, *, weights: bool = True) -> Checkpoint:
    """The checkpoint in a folder or, downloaded if need be, in a repository on the Hugging Face hub.

    Which files it needs is for its family to say (`ModelFamily.files`), and which family that is for its config.json; if none, no
    weights are fetched. weights: False leaves them where they are, if they are not here.
    Raises CheckpointError, and PluginError if two families claim the model type.
    """
    checkpoint = Checkpoint(resolve(model, weights=False))
    family = plugins.family_of(str(checkpoint.config.get("model_type", "")))
    if family is None or not (weights or family.files):
        return checkpoint
    return Checkpoint(resolve(model, weights=weights, files=family.files))
