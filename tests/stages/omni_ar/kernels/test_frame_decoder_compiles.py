"""The kernel of all passes of a frame is compiled for a Hopper GPU, which needs none: the interpreter does not run its barrier.

While its programs wait for one another, weights are on their way. So no program may wait for them between its arrival and the
others', as it does if the compiler moves a layout conversion of the weights up to their load.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.support.entry_points import REPOSITORY

pytestmark = pytest.mark.thorough

COMPILE = """
import sys

from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from omni_ar.kernels.frame_decoder import FrameSettings, FrameShape, kernel, passes
from omni_ar.kernels.frame_decoder.passes import FrameBuffers, Draws, run_passes
from omni_ar.kernels.sampling.kernel import CodePointers

dtype, projects = sys.argv[1], sys.argv[2] == "projects"
shape = FrameShape(
    layers=2, width=128, heads=4, kv_heads=2, head_dim=64, inner=256, codes=256, entry=256 if projects else 128, groups=4,
    qk_norm=not projects, projects=projects,
)
settings = FrameSettings(
    qkv=16, out=8, gate_up=8, down=8, head=16, tile_d=128, slices=4, rows_left=dtype == "bf16", num_warps=4
)
sizes = kernel._sizes(shape, settings, 1, 1, sums=not projects)
constants = {name: value for name, value in sizes.items() if name.isupper()}
constants |= {"PHASES": passes.ALL.value, "PROGRAMS": 24, "COMPILES": True}
buffers = FrameBuffers(**{name: f"*{dtype}" for name in FrameBuffers._fields} | {"codes": "*i64", "counter": "*i32"})
names = {"needs": "*i64", "temperature": "*fp32", "top_k": "*i64", "top_p": "*fp64", "seed": "*i64", "sample_index": "*i64"}
given = {
    "addresses_ptr": "*i64", "buffers": buffers, "draws": Draws("*i64", "*i64", CodePointers(**names), "*fp32", "*i32"),
    "cos_ptr": f"*{dtype}", "sin_ptr": f"*{dtype}", "eps": "fp32", "scale": "fp32",
}
signature = {name: "constexpr" if name in constants else given.get(name, "i32") for name in run_passes.arg_names}
source = ASTSource(
    fn=run_passes,
    signature=signature,
    constexprs={(run_passes.arg_names.index(name),): value for name, value in constants.items()},
    attrs={(1, index): [["tt.divisibility", 16]] for index in range(len(buffers))},
)
options = {"num_warps": 4, "num_stages": 1, "launch_cooperative_grid": True}
print(compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"])
"""


def compiled(folder: Path, *arguments: str) -> str:
    """The kernel in PTX."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'stages'}"}
    (folder / "compile_all.py").write_text(COMPILE)
    command = [sys.executable, "-W", "ignore", str(folder / "compile_all.py"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("arguments", [("bf16", "sums"), ("fp32", "projects")], ids=["bf16", "fp32"])
def test_weights_are_loaded_between_arrival_and_wait(arguments: tuple[str, str], tmp_path: Path) -> None:
    ptx = compiled(tmp_path, *arguments)
    assert "ld.global.nc" not in ptx, "the non-coherent path does not see what other programs store"
    _, *arrivals = ptx.split("atom.add.release.gpu")
    waited = [arrival.partition("ld.acquire.gpu")[0] for arrival in arrivals]
    # Of a layer: queries, attention, its output, gate and up, down; then the head and the draw, and before them a projection.
    assert len(waited) == 7 + (arguments[1] == "projects")
    loading = [text.count("ld.global") for text in waited]
    assert sum(count > 0 for count in loading) == len(waited) - 2, (
        "all but the attention's output, loaded before, and the draw"
    )
    assert not any("bar.sync" in text for text in waited)
    # Each phase of a layer fetches what a later one reads; behind them are the head and the draw.
    assert ["cp.async.bulk.prefetch" in text for text in waited][-7:] == [True, True, True, True, True, False, False]
