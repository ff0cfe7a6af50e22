"""A start imports no code that takes seconds and that an engine does not need."""

import subprocess
import sys

import pytest

from tests.support.entry_points import SOURCE_ROOTS
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reference import tiny_checkpoint

pytest.importorskip("triton")

pytestmark = pytest.mark.thorough
SLOW = ("transformers.generation.utils", "transformers.modeling_utils", "torch._dynamo", "torch.distributed.tensor")
IMPORT = """
import sys
sys.path[:0] = sys.argv[2:]
from omni.process.imports import import_code
from omni.utils.docstrings import skip_docstrings
skip_docstrings()
import_code(sys.argv[1])
from omni_qwen3_omni import config
"""
RESOLVE = """
import sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from omni.api import load
from omni.engine import PipelineChoice, open_checkpoint, resolve_pipeline
from omni.plugin.manager import load_plugins
plugins = load_plugins()
checkpoint = open_checkpoint(Path(sys.argv[1]), plugins)
resolve_pipeline(checkpoint, plugins, [], PipelineChoice())
"""
LOAD = """
import torch
from types import SimpleNamespace
from omni.engine import PipelineChoice, load_stages, open_checkpoint, resolve_pipeline, warm
from omni.kernels import RecordingDevice, VariantRecorder
from omni.plugin.manager import load_plugins

def load(device, stage):
    given = dict(dtype="bfloat16", load_format="dummy", graphs=True, stages=(stage,))
    return load_stages(plan, checkpoint, device, **given)[stage]

gpu = SimpleNamespace(name="not measured", major=9, minor=0, multi_processor_count=8)
torch.cuda.get_device_properties = lambda device: gpu
torch.cuda.get_device_capability = lambda device: (gpu.major, gpu.minor)
plugins = load_plugins()
checkpoint = open_checkpoint(sys.argv[1], plugins)
plan = resolve_pipeline(checkpoint, plugins, [], PipelineChoice())
names = [stage.name for stage in plan.pipeline.stages]
device = RecordingDevice(torch.device("cuda"), VariantRecorder())
loaded = warm.load_empty(names, load, device)
assert [*loaded] == names, f"only {[*loaded]} were loaded"
"""


def slow_modules(program: str) -> set[str]:
    """Those of `SLOW` that a program imports in a new interpreter. Its argument is a checkpoint of Qwen3-Omni."""
    program += f"\nprint(*(name for name in {SLOW} if name in sys.modules))"
    command = [sys.executable, "-c", program, str(tiny_checkpoint()), *SOURCE_ROOTS]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS, check=True)
    return {*done.stdout.split()}


def test_an_engine_of_qwen3_omni_imports_no_code_for_generation():
    assert not slow_modules(IMPORT + LOAD)


def test_no_code_for_generation_delays_the_message_of_the_model():
    assert not slow_modules(RESOLVE)


@pytest.mark.mutation
def test_planted_fault_a_slow_import_is_found():
    assert "transformers.modeling_utils" in slow_modules(f"{IMPORT}\nfrom transformers import PreTrainedModel")
