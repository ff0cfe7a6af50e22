"""The order of steps at ranks with different layer ranges of a stage (pipeline parallelism), on the clock of their hosts and on the
devices.

A merged trace has a stage's name and its place for each rank. A rank without logits does not have the last layer range.
"""

from collections.abc import Iterator, Sequence

import msgspec

from omni.device import PhaseCategory
from omni.timeline.trace import Interval, Step, Trace, steps_of


class RankOrder(msgspec.Struct, frozen=True, kw_only=True):
    """last: the rank with the last layer range. before: a rank with an earlier one. steps: steps that both ran. ahead: those whose
    forward `before` began earlier than `last` began that of the step before, which was launched earlier. example: the number of
    such a step, and by how many microseconds it was earlier; of those whose step before had prompts, if there are any. prompts:
    whether it had. late: steps whose forward `last` ended before `before` had; always 0, unless the trace is wrong."""

    last: str
    before: str
    steps: int
    ahead: int
    example: tuple[int, float] | None
    prompts: bool
    late: int


def rank_orders(trace: Trace) -> Iterator[RankOrder]:
    ranks: dict[str, list[str]] = {}
    for name in trace.stages:
        stage, space, _ = name.partition(" ")
        if space and any(span.stage == name and span.category is PhaseCategory.FORWARD for span in trace.phases):
            ranks.setdefault(stage, []).append(name)
    for names in ranks.values():
        sampling = {
            name
            for name in names
            if any(span.stage == name and span.category is PhaseCategory.LOGITS for span in trace.phases)
        }
        # Replicas, and ranks with the same layer range, all compute logits.
        leaders = [name for name in names if name in sampling]
        for before in names:
            if before not in sampling and leaders:
                yield _order(trace, leaders[0], before)


def _order(trace: Trace, last: str, before: str) -> RankOrder:
    before_steps, last_steps = ({step.number: step for step in steps_of(trace, name)} for name in (before, last))
    both = sorted(before_steps.keys() & last_steps.keys())
    early: dict[int, int] = {}
    late = 0
    for number in both:
        first, second = _forward(before_steps[number]), _forward(last_steps[number])
        if first is None or second is None:
            continue
        late += second.end < first.end
        previous = _forward(last_steps[number - 1]) if number - 1 in last_steps else None
        if previous is not None and first.start < previous.start:
            early[number] = previous.start - first.start
    behind_prompts = [number for number in early if last_steps[number - 1].numbers.get("prefill", 0) > 0]
    chosen = max(behind_prompts or early, key=lambda number: early[number], default=None)
    return RankOrder(
        last=last,
        before=before,
        steps=len(both),
        ahead=len(early),
        example=(chosen, early[chosen] / 1000) if chosen is not None else None,
        prompts=bool(behind_prompts),
        late=late,
    )


def _forward(step: Step) -> Interval | None:
    runs = [span.ran for span in step.phases if span.category is PhaseCategory.FORWARD]
    return Interval(runs[0].start, runs[-1].end) if runs else None


def rank_lines(orders: Sequence[RankOrder]) -> Iterator[str]:
    """The report's lines about them."""
    for one in orders:
        yield ""
        if one.example is None:
            yield f"{one.before} began none of {one.steps} steps before {one.last} began the step before."
        else:
            number, earlier = one.example
            what = ", one with prompts," if one.prompts else ""
            yield f"{one.before} began {one.ahead} of {one.steps} steps before {one.last} began the step before, though that was"
            yield f"launched earlier: step {number} {earlier:.1f} before step {number - 1}{what} for example."
            yield f"That is not a bug: {one.before} has an earlier layer range, and goes on with the next rows meanwhile."
            yield "A rank runs its steps in the order of their launches, each after the hidden states and tokens that it reads."
        if one.late:
            yield f"{one.late} steps of {one.last} ended their forward before {one.before} had: the trace is wrong."
        else:
            yield f"In all {one.steps} steps {one.before} ended its forward first, and then {one.last}."
