"""Layer ranges by measured time (`ArOptions.pipeline_layers`)."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from omni.parallel import Ranks
from omni.stage import StageContext
from omni.utils.log import safe_logger
from omni_ar.layers.decoder import decoder_of
from omni_ar.layers.parallel import LayerRange
from omni_ar.loaded import LoadedAr
from omni_ar.model import ArModel

_log = safe_logger(__name__)

_OTHER = 2**62
"""Nanoseconds, more than any step takes."""
_CLOSE = 1.01
"""Ratio up to which two times count as equal."""
_UNTIMED = 1.02
"""Time of the last range's step, over that of its trial, which takes no hidden states from another rank and sends it no tokens:
0.15 of 7 ms on two H200."""


def balanced_layers(num_layers: int, layers: Sequence[int], times: Sequence[float]) -> tuple[int, ...]:
    """The numbers of layers with which the slowest layer range takes the least time. Among equally good ones, those with the
    fewest layers in the last range, since tokens wait for it alone.

    layers, times: numbers of layers of each range, and the time of its step with them. The time of the last range beyond its layers
    is for logits, sampling and codes."""
    ranges = len(layers)
    layer = sum(times[:-1]) / sum(layers[:-1])
    beyond = max(0.0, times[-1] * _UNTIMED - layers[-1] * layer)

    def slowest(last: int) -> float:
        return max(last * layer + beyond, -(-(num_layers - last) // (ranges - 1)) * layer)

    possible = range(1, num_layers - (ranges - 1) + 1)
    least = min(map(slowest, possible))
    last = next(last for last in possible if slowest(last) <= least * _CLOSE)
    fewest, more = divmod(num_layers - last, ranges - 1)
    return (*(fewest + (index < more) for index in range(ranges - 1)), last)


def measured_range(context: StageContext, model: ArModel, even: LayerRange) -> LayerRange:
    """The layer range of this rank, by time. even: its range with equal numbers of layers. model: that of `even`, with random
    weights, which a decode step does not depend on. All ranks call it, and wait for each other."""
    ranks = context.ranks
    assert ranks is not None
    assert ranks.pipeline is not None
    with ranks.silent():
        own = median(LoadedAr(context, model).time_decodes())
    times = [_time_of(ranks, position, own) for position in range(even.size)]
    if max(times) >= _OTHER:
        return even  # a rank without peers, for footprints
    num_layers = len(decoder_of(model).layers)
    trial = [len(replace(even, position=position).held(num_layers)) for position in range(even.size)]
    layers = balanced_layers(num_layers, trial, times)
    said = ", ".join(f"{time / 1e6:.2f} ms" for time in times)
    _log.info("%s: layer ranges of %s layers take %s; the stage uses %s", even.stage, trial, said, list(layers))
    return replace(even, layers=layers)


def _time_of(ranks: Ranks, position: int, own: float) -> int:
    """Nanoseconds of the fastest rank of a layer range."""
    assert ranks.pipeline is not None
    return ranks.all_reduce_min(
        f"time of layer range {position}", round(own) if ranks.pipeline.position == position else _OTHER
    )
