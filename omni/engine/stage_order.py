"""The order in which the stages of a device launch their steps in a turn, by the slack of listeners."""

import math
from collections.abc import Sequence

from omni.engine.produced import AUDIO
from omni.pipeline import Pipeline
from omni.stage import Listeners

Names = tuple[str, ...]


def sound_stages(pipeline: Pipeline) -> frozenset[str]:
    """The stages whose output is sound, and those that feed them: every frame of speech passes them."""
    makers = {output.stage for output in pipeline.outputs if output.modality == AUDIO}
    return frozenset(makers | {edge.producer for maker in makers for edge in pipeline.edges_into(maker)})


def edges_to_sound(pipeline: Pipeline) -> frozenset[str]:
    """Names of the edges that lead from other stages to sound stages: their payloads will become sound."""
    sound = sound_stages(pipeline)
    return frozenset(e.name for e in pipeline.edges if e.consumer in sound and e.producer not in sound)


class StageOrder:
    """Decides which stages launch first. Each turn, the first case that holds:

    | listeners | order |
    |---|---|
    | one has less slack than `ample`, or waits at the sound stages for its first sound | sound stages, then the others |
    | no such listener, but one whose request is at other stages | the other stages, then the sound stages |
    | nobody waits | as in the pipeline, producers first |

    In the first two cases the stages that come second are held in a turn in which one of the first has done something, but never
    in two turns in a row. So they do not starve, and continue at once where the first ones have nothing to do.
    """

    def __init__(
        self, stages: Sequence[str], sound_stages: frozenset[str], listeners: Listeners, *, ample: float = 1.0
    ) -> None:
        """stages: those of the engine, producers first. ample: slack in seconds."""
        self._listeners = listeners
        self._ample = ample
        sound = tuple(name for name in stages if name in sound_stages)
        others = tuple(name for name in stages if name not in sound_stages)
        self._plain: tuple[Names, Names] = (tuple(stages), ())
        self._sound_first = (sound, others) if sound and others else self._plain
        self._others_first = (others, sound) if sound and others else self._plain
        self._held = False
        """Whether the last turn held stages."""

    def turn(self) -> tuple[Names, Names]:
        """The stages that launch first in this turn, and those that follow if `follows`."""
        listeners = self._listeners
        if not listeners.anyone:
            return self._plain
        if listeners.awaited or listeners.least < self._ample:
            return self._sound_first
        return self._others_first if listeners.coming else self._plain

    def numbers(self, first: Names) -> dict[str, int]:
        """The reason of a turn's order, for the timeline: whether the sound stages launch `first`, or the others do; whether the
        slack of a listener is short; whether one waits at the sound stages; and the least slack, if one is playing.
        """
        listeners, least = self._listeners, self._listeners.least
        numbers = {
            "sound_first": int(first == self._sound_first[0] != self._plain[0]),
            "others_first": int(first == self._others_first[0] != self._plain[0]),
            "short": int(listeners.short),
            "awaited": int(listeners.awaited),
        }
        return numbers if least == math.inf else {**numbers, "slack_ms": round(1000 * least)}

    def follows(self, moved: bool) -> bool:
        """Whether the others launch too. moved: whether one of the first stages has done something."""
        self._held = moved and not self._held
        return not self._held
