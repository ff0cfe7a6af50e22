"""Text and an earlier turn's sound in, speech out: CSM of the published 1B shape with dummy weights, as users run it.

    python benchmarks/speak.py [--frames 125] [--concurrency 1 4 16] [--turns 1] [--eager] [--json FILE]

No frame ends a request, so each makes `frames` frames; sampling is as published (temperature 0.9, the best 50 codes).
Requests of a round start together; a short round goes before. Per concurrency, means over its requests: time to the first audio,
real-time factor (time to the last sample over seconds of speech), and milliseconds per frame from the first audio to the last; and
seconds of speech made per second, all together. Of `--rounds` rounds the median by real-time factor is printed. Each request brings
`turns` turns of three seconds that no other request has: the audio encoder is part of its first audio.
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import CsmConfig

from bench.arguments import at_least, device_here, output_file, positive_int
from bench.report import environment, print_facts, print_table, write_json
from omni import Omni, SamplingParams
from omni.utils.quiet import quiet
from omni_csm.tiny import write_tiny

_SECONDS = 3.0
_RATE = 24000
_SAMPLING = {"do_sample": True, "temperature": 0.9, "top_k": 50}
_ROPE = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0}
_SCALING = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


@dataclass(frozen=True, slots=True)
class SpeakRound:
    """Seconds, but for ms_per_frame. speech: seconds of it per second, of all requests."""

    requests: int
    first_audio: float
    rtf: float
    ms_per_frame: float
    speech: float


def write_shape(directory: Path) -> None:
    """The published sizes, which are the defaults of transformers, with the tiny checkpoint's tokenizer and no weights."""
    write_tiny(directory)
    (directory / "model.safetensors").unlink()
    path = directory / "config.json"
    tiny = json.loads(path.read_text())
    with quiet():
        config: dict[str, Any] = CsmConfig().to_dict()
    config |= {name: tiny[name] for name in ("bos_token_id", "pad_token_id", "audio_token_id", "audio_eos_token_id")}
    config["rope_parameters"] = _ROPE | dict(zip(_SCALING, (0.125, 0.5, 1024), strict=True))
    depth = config["depth_decoder_config"]
    depth["rope_parameters"] = _ROPE | dict(zip(_SCALING, (0.001953125, 0.0078125, 16), strict=True))
    path.write_text(json.dumps(config | {"dtype": "bfloat16"}))
    generation = _SAMPLING | {f"depth_decoder_{name}": value for name, value in _SAMPLING.items()}
    (directory / "generation_config.json").write_text(json.dumps(generation))


def ask(omni: Omni, requests: int, frames: int, turns: int, salt: int) -> SpeakRound:
    """One round of so many requests at once. salt: makes their prompts new."""
    sampling = {"backbone": SamplingParams(max_tokens=frames, seed=salt, ignore_eos=True)}
    chats = [_chat(turns, 1000 * salt + index) for index in range(requests)]
    start = time.perf_counter()
    results = omni.generate(chats, sampling=sampling, stream=False)
    seconds = time.perf_counter() - start
    assert isinstance(results, list)
    for result in results:
        if result.error is not None:
            raise result.error
        assert result.metrics.stages["backbone"].counts["frames"] == frames, "it must have run to its limit"
    metrics = [result.metrics for result in results]
    first = statistics.mean(one.first_audio for one in metrics if one.first_audio is not None)
    last = statistics.mean(one.rtf * one.audio_seconds for one in metrics if one.rtf is not None)
    return SpeakRound(
        requests=requests,
        first_audio=first,
        rtf=statistics.mean(one.rtf for one in metrics if one.rtf is not None),
        ms_per_frame=1000 * (last - first) / frames,
        speech=sum(one.audio_seconds for one in metrics) / seconds,
    )


def _chat(turns: int, number: int) -> list[dict[str, object]]:
    noise = np.random.default_rng(number).standard_normal((turns, int(_SECONDS * _RATE))).astype(np.float32)
    earlier: list[dict[str, object]] = [
        {"role": "user", "content": [_text(f"This is turn {turn} of {number}."), _sound(0.1 * clip)]}
        for turn, clip in enumerate(noise)
    ]
    return [*earlier, {"role": "user", "content": f"Tell me about the number {number}."}]


def _text(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def _sound(samples: np.ndarray) -> dict[str, object]:
    return {"type": "input_audio", "input_audio": samples}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=positive_int, default=125)
    parser.add_argument("--concurrency", type=positive_int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--turns", type=at_least(0), default=1)
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument("--eager", action="store_true", help="capture no graphs")
    parser.add_argument("--device", type=device_here("--tiny --device cpu"), choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the tiny shape: to see that it runs")
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    overrides = {"engine.graphs": False} if arguments.eager else {}
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        (write_tiny if arguments.tiny else write_shape)(Path(folder))
        start = time.perf_counter()
        with Omni(folder, load_format="dummy", overrides=overrides, device=arguments.device) as omni:
            started = time.perf_counter() - start
            for requests in arguments.concurrency:
                ask(omni, requests, 12, arguments.turns, salt=1)
                made = [ask(omni, requests, arguments.frames, arguments.turns, 2 + n) for n in range(arguments.rounds)]
                rounds.append(sorted(made, key=lambda one: one.rtf)[len(made) // 2])
    cells = [
        (one.requests, f"{one.first_audio:.3f}", f"{one.rtf:.3f}", f"{one.ms_per_frame:.2f}", f"{one.speech:.1f}")
        for one in rounds
    ]
    print_table(("at once", "first audio s", "RTF", "ms per frame", "speech s/s"), cells)
    facts = environment() | {"start-up s": f"{started:.1f}"}
    print_facts(facts)
    write_json(arguments.json, [asdict(one) for one in rounds], facts)


if __name__ == "__main__":
    main()
