"""Imports of an engine's process, made before the user's process sends the model to load."""

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

from omni.checkpoint import Checkpoint
from omni.engine import PipelineChoice, resolve_pipeline
from omni.plugin.manager import load_plugins
from omni.utils.docstrings import written_docstring


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


def keep_docstrings() -> None:
    """Leaves the generated parts out of the docstrings of all transformers classes that are imported from now on. To generate them,
    transformers 5.17 imports the classes of all its models and its generation code, which takes seconds. An engine's process has no
    reader of docstrings."""
    sys.meta_path.insert(0, _DocstringFinder())


class _DocstringFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "transformers.utils.auto_docstring":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _DocstringLoader(fullname, spec.loader.path)
        return spec


class _DocstringLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        vars(module)["auto_docstring"] = written_docstring
