"""Measures launch settings where they are used: by the decode step of a whole model.

    python benchmarks/tune/in_steps.py 30b 8 linear linear-N5120-D2048-bfloat16 '{"kernel": "tiled", ...}' '{}'

The other scripts of this folder time an operation over and over. Among the kernels of a step it may do otherwise: what comes while
the one before still runs, and lets the next one come, saves time that is theirs. cuBLAS does neither, so a product that takes as
long alone may still cost a step 2 us more.

Prints the median step by the tables, by the tables with each of the settings (`{}`: of a linear map, cuBLAS), and by the tables
again: what lies within their difference is noise. What is better goes into the table by hand.
"""

import argparse
import importlib
import json
import tempfile
from pathlib import Path

import beside  # noqa: F401 - for `bench`
import torch

from bench.cases import DecodeCase, measure_decode
from bench.device import open_timed
from bench.pipelines import family_pipeline
from decode import STAGES
from omni.checkpoint import Checkpoint
from omni_ar.kernels.tuning import table
from shapes import SHAPES

_STEPS = 40
_PROMPT = 512
# Where settings are looked up once and kept.
_KEPT = {"attention.settings": ("_decode_settings",), "linear.settings": ("_settings",), "moe.settings": ("_settings",)}


def use(operation: str, key: str, sizes: dict[int, table.Config]) -> None:
    """Puts the settings of a shape in the place of those that the table has."""
    table._table(table._folder(torch.device("cuda")), operation)[key] = sizes
    table._measured.cache_clear()
    for module, names in _KEPT.items():
        for name in names:
            getattr(importlib.import_module(f"omni_ar.kernels.{module}"), name).cache_clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=STAGES, help="the model")
    parser.add_argument("rows", type=int, help="that decode together")
    parser.add_argument("operation", choices=("linear", "moe", "attention_decode"), help="whose table it is")
    parser.add_argument("key", help="of the shape, as in the table")
    parser.add_argument("settings", nargs="+", type=json.loads, help="each a JSON object")
    options = parser.parse_args()
    shape = STAGES[options.shape]
    shipped = dict(table._table(table._folder(torch.device("cuda")), options.operation)[options.key])
    device = open_timed("cuda")
    with tempfile.TemporaryDirectory() as folder:
        SHAPES[shape.name](Path(folder))
        checkpoint = Checkpoint(Path(folder))
        pipeline = family_pipeline(checkpoint)
        case = DecodeCase(checkpoint, pipeline, shape.stage, options.rows, _PROMPT, device, "bfloat16", True)
        for settings in (None, *options.settings, None):
            use(options.operation, options.key, shipped if settings is None else shipped | {options.rows: settings})
            times, _ = measure_decode(case, _STEPS)
            print(f"{times.step[0]:9.1f} us  {'the table' if settings is None else json.dumps(settings)}", flush=True)


if __name__ == "__main__":
    main()
