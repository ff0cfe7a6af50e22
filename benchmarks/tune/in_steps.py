"""Measures launch settings where they are used: by the decode step of a whole model.

    python benchmarks/tune/in_steps.py 30b 8 linear linear-N5120-D2048-bfloat16 '{"kernel": "tiled", ...}' '{}'

The other scripts of this folder time an operation over and over. Among the kernels of a step it may do otherwise: what comes while
the one before still runs, and lets the next one come, saves time that is theirs. cuBLAS does neither, so a product that takes as
long alone may still cost a step 2 us more.

Prints the median step by the tables, by the tables with each of the settings (`{}`: of a linear map, cuBLAS), and by the tables
again: what lies within their difference is noise. Results are not checked: give settings that another script has found right. What
is better goes into `in_steps.json` beside the tables, by hand; the other scripts leave that file alone.
"""

import argparse
import json
import tempfile
from pathlib import Path

import beside  # noqa: F401 - for `bench`
import msgspec

from bench.arguments import at_least, device_here, positive_int
from bench.cases import DecodeCase, measure_decode
from bench.device import open_timed
from bench.pipelines import family_pipeline
from decode import STAGES
from omni.checkpoint import Checkpoint
from omni_ar.kernels import tuning
from omni_ar.kernels.attention.settings import DecodeSettings
from omni_ar.kernels.linear.settings import LinearSettings
from omni_ar.kernels.moe.settings import MoeSettings
from shapes import SHAPES

_KINDS = {"attention_decode": DecodeSettings, "linear": LinearSettings, "moe": MoeSettings}


def checked(text: str, operation: str) -> tuning.Config:
    """Raises ValueError for what the operation's launches do not take."""
    settings: tuning.Config = json.loads(text)
    if settings or operation != "linear":
        msgspec.convert(settings, _KINDS[operation])
    return settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=STAGES, help="the model")
    parser.add_argument("rows", type=positive_int, help="that decode together")
    parser.add_argument("operation", choices=_KINDS, help="whose table it is")
    parser.add_argument("key", help="of the shape, as in the table")
    parser.add_argument("settings", nargs="+", help="each a JSON object")
    parser.add_argument("--prompt", type=positive_int, default=512, help="ids of each prompt")
    parser.add_argument("--steps", type=at_least(3), default=40)
    parser.add_argument(
        "--device",
        type=device_here("the shape tiny-omni with --device cpu"),
        choices=("cuda", "cpu"),
        default="cuda",
        help="the CPU only shows that the script runs",
    )
    options = parser.parse_args()
    try:
        tried = [checked(text, options.operation) for text in options.settings]
    except ValueError as error:
        parser.error(f"settings: {error}")
    shape, device, cuda = STAGES[options.shape], open_timed(options.device), options.device == "cuda"
    shipped = tuning.shipped(options.operation, device.torch_device, options.key)
    with tempfile.TemporaryDirectory() as folder:
        SHAPES[shape.name](Path(folder))
        checkpoint = Checkpoint(Path(folder))
        dtype = "bfloat16" if cuda else "float32"
        pipeline = family_pipeline(checkpoint)
        case = DecodeCase(checkpoint, pipeline, shape.stage, options.rows, options.prompt, device, dtype, cuda)
        for settings in (None, *tried, None):
            sizes = None if settings is None else {**shipped, options.rows: settings}
            tuning.replace(options.operation, options.key, sizes)
            times, _ = measure_decode(case, options.steps)
            print(f"{times.step[0]:9.1f} us  {'the tables' if settings is None else json.dumps(settings)}", flush=True)


if __name__ == "__main__":
    main()
