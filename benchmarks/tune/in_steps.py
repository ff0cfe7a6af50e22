"""Measures launch settings where they are used: by the decode step of a whole model.

    python benchmarks/tune/in_steps.py 30b 8 --replace linear linear-N5120-D2048-bfloat16 '{"kernel": "tiled", ...}' '{}'

The other scripts of this folder time an operation over and over. Among the kernels of a step it may do otherwise: what comes while
the one before still runs, and lets the next one come, saves time that is theirs. cuBLAS does neither, so a product that takes as
long alone may still cost a step 2 us more.

Prints the median step by the tables, by the tables with each combination of the replaced entries, and by the tables again: what
lies within their difference is noise. Results are not checked: give settings that another script or a test has found right. What is
better goes into `in_steps.json` beside the tables, by hand; the other scripts leave that file alone. `layer_times.py` times a part
of a model in the same way, in seconds instead of minutes.
"""

import argparse
import tempfile
from pathlib import Path

import beside  # noqa: F401 - for `bench`
from replacements import add_replace, read_replace, replaced, shown

from bench.arguments import at_least, device_here, positive_int
from bench.cases import DecodeCase, measure_decode
from bench.device import open_timed
from bench.pipelines import family_pipeline
from decode import STAGES
from omni.checkpoint import Checkpoint
from shapes import SHAPES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=STAGES, help="the model")
    parser.add_argument("rows", type=positive_int, help="that decode together")
    add_replace(parser)
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
    tried = read_replace(parser, options.replace, options.rows)
    shape, device, cuda = STAGES[options.shape], open_timed(options.device), options.device == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        SHAPES[shape.name](Path(folder))
        checkpoint = Checkpoint(Path(folder))
        dtype = "bfloat16" if cuda else "float32"
        pipeline = family_pipeline(checkpoint)
        case = DecodeCase(checkpoint, pipeline, shape.stage, options.rows, options.prompt, device, dtype, cuda)
        for entries in ({}, *tried, {}):
            with replaced(entries, device.torch_device):
                times, _ = measure_decode(case, options.steps)
            print(f"{times.step[0]:9.1f} us  {shown(entries)}", flush=True)


if __name__ == "__main__":
    main()
