"""The conformance suite of vocoder models: `check_vocoder`."""

from collections.abc import Callable

import torch
from torch import Tensor

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.errors import ConfigError
from omni.testing.vocoders import checks
from omni.testing.vocoders.bench import TestedVocoder, VocoderBench, require

__all__ = ["CHECKS", "TestedVocoder", "check_vocoder"]

CHECKS: tuple[Callable[[VocoderBench], None], ...] = (
    checks.declares,
    checks.one_pass,
    checks.chunks_of_any_size,
    checks.batches,
    checks.interleaved,
    checks.rows_reused,
    checks.state_freed,
    checks.unknown_codes,
    checks.guarded,
)
"""The checks, in order. Each docstring names the faults that its check detects."""

_REQUESTS = 4
_FEWEST_FRAMES = 12
_LOUD = 1e-3


def check_vocoder(
    model: TestedVocoder,
    *,
    codebook_size: int,
    whole: Callable[[Tensor], Tensor] | None = None,
    frames: int = 24,
    device: Device | None = None,
    tolerance: float = 1e-4,
) -> None:
    """Raises AssertionError, which names the broken promise and a remedy, if a model breaks one of
    `omni_vocoder.model.VocoderModel`.

    model: on the device, weights loaded, in float32.
    codebook_size: of each code group: the suite draws codes below it, and a few beyond it, which the model must clamp.
    whole: the author's own pass over a whole request: codes int64 `[N, G]` to samples `[S]`. None compares with one
        `decode` of all frames.
    frames: of a request; more than the layers look back.
    device: of the model; None is the CPU.
    tolerance: of the waveform's peak.

    | checked | in |
    |---|---|
    | numbers of the model; one pass, twice, and against `whole` | `declares`, `one_pass` |
    | chunks of any size give the waveform of one pass | `chunks_of_any_size` |
    | batches with padding; streams whose chunks come in turn | `batches`, `interleaved` |
    | a row that is used again; memory that does not grow | `rows_reused`, `state_freed` |
    | ids beyond the tables; no wait for the device | `unknown_codes`, `guarded` |
    | shapes, values in [-1, 1], codes that are not written | everywhere |

    Runs the model, not a stage: `check_stage("omni_vocoder.kind:VocoderStageKind", ...)` runs one.
    """
    fewest = max(_FEWEST_FRAMES, 2 * model.min_first_frames)
    if frames < fewest:
        raise ConfigError("frames", f"are {frames}", f"give {fewest} or more")
    drawn = torch.Generator().manual_seed(0)
    requests = [
        torch.randint(0, codebook_size, (max(frames - 3 * n, fewest // 2 + 3), model.num_groups), generator=drawn)
        for n in range(_REQUESTS)
    ]
    bench = VocoderBench(model, device or CpuDevice(), requests, tolerance)
    for check in CHECKS:
        try:
            if check is checks.one_pass:
                _expect(bench, whole)
            check(bench)
        except AssertionError as error:
            error.add_note(f"in the check {check.__name__}")
            raise


def _expect(bench: VocoderBench, whole: Callable[[Tensor], Tensor] | None) -> None:
    """The waveforms that all others are compared with."""
    for codes_NG in bench.requests:
        with torch.inference_mode():
            wave_S = bench.stream(codes_NG, [len(codes_NG)]) if whole is None else whole(codes_NG).float().cpu()
        bench.waves.append(wave_S)
    quietest = min(float(wave_S.abs().max()) if len(wave_S) else 0.0 for wave_S in bench.waves)
    peak = f"the peak of a waveform is {quietest:.1e}, below {_LOUD}, so that nothing can be compared"
    if quietest < _LOUD and whole is not None:
        raise ConfigError("whole", peak, "give a function that makes sound")
    require(
        quietest >= _LOUD,
        f"decode gives sound: {peak}",
        "see that weights are loaded and that random ones make sound (omni.tiny.scale_peak)",
    )
