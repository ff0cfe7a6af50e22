"""Error of a diffusion stage's less precise products: sound in TF32 and in bfloat16, in denoising windows, against float32.

    python benchmarks/precision.py MODEL --load-format dummy --device cuda --json FILE

MODEL: a checkpoint whose pipeline has a stage of kind "diffusion". All get the same random codes and noise. `latents` and
`waveform` are the differences' root mean square, as a share of that of float32; `peak` is the waveform's largest, as a share of its
peak.
"""

import argparse

import torch

from bench.alone import denoise_alone, render_alone
from bench.arguments import at_least, device_here, output_file, positive_int
from bench.report import environment, print_facts, print_table, write_json
from omni.device import open_device
from omni_diffusion.precision import products
from omni_diffusion.windows import WindowSizes
from windows import apart, load

PRECISIONS = {"float32": ("float32", False), "TF32": ("float32", True), "bfloat16": ("bfloat16", True)}
"""Dtype, and whether products may be rounded to TF32, by name."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--frames", type=positive_int, default=200, help="code frames")
    parser.add_argument("--codes", type=positive_int, default=64, help="codes are drawn below this")
    parser.add_argument("--voice", type=at_least(0), default=0)
    parser.add_argument("--device", type=device_here("--device cpu"), default="cuda")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    given = parser.parse_args()
    place, rows = open_device(given.device).torch_device, []
    exact: tuple[torch.Tensor, torch.Tensor] | None = None
    with torch.inference_mode():
        for name, (dtype, tf32) in PRECISIONS.items():
            model, options = load(given.model, given.device, dtype, given.load_format)
            torch.manual_seed(0)
            codes_NG = torch.randint(given.codes, (given.frames, model.num_groups)).to(place)
            noise_TM = torch.randn(given.frames * model.repeats, model.latent_width).to(place)
            with products(tf32):
                latents_TM = denoise_alone(model, codes_NG, given.voice, noise_TM, WindowSizes.of(options, model))
                wave_S = render_alone(model, latents_TM)
            exact = exact or (latents_TM, wave_S)
            largest = float((wave_S - exact[1]).abs().max() / exact[1].abs().max())
            found = {"latents": apart(latents_TM, exact[0]), "waveform": apart(wave_S, exact[1]), "peak": largest}
            rows.append({"precision": name} | found)
    print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    print_facts(environment())
    write_json(given.json, rows, environment())


if __name__ == "__main__":
    main()
