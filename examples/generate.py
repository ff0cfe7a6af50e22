"""Ask about a picture and a recording. The answer is printed while it is written, and saved as speech.

    python examples/generate.py MODEL [--voice ethan] [--out answer.wav]

MODEL is a checkpoint folder or a hub id; `omni tiny DIR --family qwen3_omni` writes one that needs no download.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from omni import Omni, SamplingParams
from omni.media import save_wav

ASSETS = Path(__file__).parent / "assets"

# Media may be a path, a URL, a data URI, a file's bytes, a PIL image, an array or a tensor.
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a kind guide."},
    {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": str(ASSETS / "shapes.png")}},
            {"type": "input_audio", "input_audio": str(ASSETS / "question.wav")},
            {"type": "text", "text": "What do you see, and what was said?"},
        ],
    },
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask about a picture and a recording.")
    parser.add_argument("model")
    parser.add_argument("--voice", help="one of the model's voices")
    parser.add_argument("--out", default="answer.wav")
    arguments = parser.parse_args()

    with Omni(arguments.model) as omni:
        speech: list[torch.Tensor] = []
        sample_rate = 0
        # Text and sound come mixed, each piece as soon as it is there. Leaving the loop early cancels the request.
        for out in omni.generate(
            MESSAGES,
            modalities=("text", "audio"),
            voice=arguments.voice,
            sampling=SamplingParams(max_tokens=256),
        ):
            print(out.text, end="", flush=True)
            if out.audio is not None and out.sample_rate is not None:
                # A player could have these samples now.
                speech.append(out.audio)
                sample_rate = out.sample_rate
            if out.finished and out.metrics is not None:
                print(f"\n{out.metrics.audio_seconds:.1f} s of speech in {out.metrics.total:.1f} s")

    if speech:
        save_wav(arguments.out, torch.cat(speech), sample_rate)
        print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
