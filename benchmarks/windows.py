"""Cost of streaming in a diffusion stage: the distance of sound in denoising windows from the whole, and the repeated work.

    python benchmarks/windows.py MODEL --frames 400 --codes 8193
    python benchmarks/windows.py MODEL --load-format dummy --device cuda --json FILE

MODEL: a checkpoint whose pipeline has a stage of kind "diffusion". The same random codes and the same noise go through one window
and through windows of several `blocks_before` and `blocks_after`. `latents` and `waveform` are the differences' root mean square,
as a share of the whole's; `work` is how many blocks are denoised for each that is given.
"""

import argparse
from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from bench.alone import denoise_alone, render_alone
from bench.arguments import at_least, device_here, output_file, positive_int
from bench.report import environment, print_facts, print_table, write_json
from omni.checkpoint import Checkpoint, resolve
from omni.device import open_device
from omni.engine import resolve_pipeline
from omni.plugin.manager import load_plugins
from omni.stage import StageContext, build_model
from omni_diffusion.model import DiffusionModel
from omni_diffusion.options import DiffusionOptions
from omni_diffusion.windows import WindowSizes

BEFORE = (0, 1, 2, 4, 8)
AFTER = (0, 1, 2, 4, 8)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def apart(stream: Tensor, whole: Tensor) -> float:
    return float((stream - whole).square().mean().sqrt() / whole.square().mean().sqrt())


def compare(
    model: DiffusionModel[object],
    codes_NG: Tensor,
    noise_TM: Tensor,
    voice: int,
    options: DiffusionOptions,
    before: tuple[int, ...] = BEFORE,
    after: tuple[int, ...] = AFTER,
) -> Iterator[dict[str, object]]:
    """A row for each pair. options: have the sizes of chunks."""
    whole_TM = denoise_alone(model, codes_NG, voice, noise_TM)
    whole_S = render_alone(model, whole_TM)
    for back, ahead in product(before, after):
        one = DiffusionOptions(
            first_chunk_blocks=options.first_chunk_blocks,
            chunk_blocks=options.chunk_blocks,
            blocks_before=back,
            blocks_after=ahead,
        )
        latents_TM = denoise_alone(model, codes_NG, voice, noise_TM, WindowSizes.of(one, model))
        yield {
            "before": back,
            "after": ahead,
            "work": (back + one.chunk_blocks + ahead) / one.chunk_blocks,
            "latents": apart(latents_TM, whole_TM),
            "waveform": apart(render_alone(model, latents_TM), whole_S),
        }


def load(name: str, device_name: str, dtype: str, load_format: str) -> tuple[DiffusionModel[object], DiffusionOptions]:
    checkpoint = Checkpoint(resolve(name))
    plan = resolve_pipeline(checkpoint, load_plugins())
    stage = next(stage for stage in plan.pipeline.stages if stage.kind == "diffusion")
    assert isinstance(stage.options, DiffusionOptions)
    device = open_device(device_name)
    context = StageContext(
        stage=stage,
        options=stage.options,
        checkpoint=checkpoint,
        device=device,
        dtype=DTYPES[dtype],
        load_format=load_format,
    )
    model = build_model(context, DiffusionModel)  # type: ignore[type-abstract]
    return model, stage.options


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--frames", type=positive_int, default=200, help="code frames")
    parser.add_argument("--codes", type=positive_int, default=64, help="codes are drawn below this")
    parser.add_argument("--voice", type=at_least(0), default=0)
    parser.add_argument("--device", type=device_here("--device cpu"), default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    given = parser.parse_args()
    with torch.inference_mode():
        model, options = load(given.model, given.device, given.dtype, given.load_format)
        torch.manual_seed(0)
        codes_NG = torch.randint(given.codes, (given.frames, model.num_groups))
        noise_TM = torch.randn(given.frames * model.repeats, model.latent_width)
        device = open_device(given.device).torch_device
        rows = list(compare(model, codes_NG.to(device), noise_TM.to(device), given.voice, options))
    print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    print_facts(environment())
    write_json(given.json, rows, environment())


if __name__ == "__main__":
    main()
