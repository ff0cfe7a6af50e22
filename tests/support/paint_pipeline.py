"""A family of one diffusion stage, fed by the front end, of a model small enough to check by hand."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint

from omni.checkpoint import Checkpoint
from omni.hookspecs import hookimpl
from omni.pipeline import Output, Pipeline, Stage
from omni.plugin.entries import ModelFamily
from omni.plugin.manager import Plugins, load_plugins
from omni.stage import StageContext
from omni_diffusion.options import DiffusionOptions
from support.painter import Painter

PAINT = "paint"
_HERE = "support.paint_pipeline"
OPTIONS = DiffusionOptions(max_num_seqs=3, first_chunk_blocks=1, chunk_blocks=2, blocks_before=1, blocks_after=1)


def build_painter(context: StageContext) -> Painter:
    return Painter(device=str(context.device.torch_device), watched=False)


def build_nothing(context: StageContext) -> object:
    return object()


def paint_pipeline(painter: str = "build_painter") -> Pipeline:
    return Pipeline(
        family="paint",
        stages=(Stage(name=PAINT, kind="diffusion", model=f"{_HERE}:{painter}", options=OPTIONS),),
        edges=(),
        outputs=(Output(modality="audio", stage=PAINT),),
        frontend=f"{_HERE}:none",
    )


def paint_plugins() -> Plugins:
    """The plugins that the pipeline needs, loaded as entry points are."""
    modules = {"diffusion": "omni_diffusion.plugin", "local": "omni_local.plugin", "paint": _HERE}
    return load_plugins([EntryPoint(name, module, "omni") for name, module in modules.items()])


def published(checkpoint: Checkpoint) -> Pipeline:
    return paint_pipeline()


@hookimpl
def omni_model_families() -> Sequence[ModelFamily]:
    return [ModelFamily(name="paint", model_types=("paint",), pipeline=f"{_HERE}:published")]
