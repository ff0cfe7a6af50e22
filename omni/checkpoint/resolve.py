"""Resolves a user's name of a model to a local folder."""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from omni.errors import CheckpointError

_TEXTS = ["*.json", "*.jinja", "*.txt", "*.model"]
_WEIGHTS = ["*.safetensors"]


def resolve(model: str | Path, *, weights: bool = True, download: bool = True, files: Sequence[str] = ()) -> Path:
    """The folder of `model`: a local folder, or the id of a repository on the Hugging Face hub, downloaded if necessary. Raises
    CheckpointError if `model` is neither.

    weights: False downloads no weights. download: False uses only local files. files: names or patterns of further files to
    download.
    """
    folder = Path(model).expanduser()
    # An empty name would be the current folder.
    if folder.is_dir() and model != "":
        return folder
    if folder.is_file():
        raise CheckpointError("model", f"{model} is a file", "give the folder that holds it")
    may_be_id = isinstance(model, str) and model and not model.startswith((".", "/", "~")) and not model.endswith("/")
    if isinstance(model, Path) or not may_be_id or model.count("/") > 1:
        remedy = "give a checkpoint folder or a hub id (owner/name)"
        raise CheckpointError("model", f"there is no folder {model}", remedy)
    try:
        wanted = [*_TEXTS, *(_WEIGHTS if weights else ()), *files]
        return Path(snapshot_download(model, allow_patterns=wanted, local_files_only=not download))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        problem = f"{model} is no local folder, and the hub gave no such checkpoint ({reason})"
        remedy = "check the spelling and the network; for a private repository, log in with `hf auth login`"
        raise CheckpointError("model", problem, remedy) from error
