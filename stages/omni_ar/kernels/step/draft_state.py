"""The device state of drafts, of a stage with a drafter. `omni_ar.run.state` allocates it.

Shape legend: N rows of the stage, L tokens of a row, K drafts of a row.
"""

from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

T = TypeVar("T")
N = TypeVar("N", int, Tensor)

RATE_ONE = 1 << 16
"""`DraftFields.rate` of a row whose drafts are all accepted."""
LEAST_RATE = 3 * RATE_ONE // 20
"""A row verifies drafts if its rate is at least this."""
COST_SHARE = 2
"""A draft is verified if it is accepted with a probability of at least its cost divided by this: costs are upper bounds."""
RATE_SHIFT = 3
"""Each draft that was tried changes the rate by 2 ** -RATE_SHIFT of the difference."""


class DraftFields(NamedTuple, Generic[T]):
    """One row of `DraftState.fields`, or one column per field.

    cap: maximum drafts that a step verifies; 0 for a row without drafts. rate: the estimated probability that a draft is accepted,
    in units of 1 / RATE_ONE. proposed: number of drafts that the drafter has made for the step under way, 0 for a row without
    drafts. offered: number of those that the step verifies. found: 0 if the drafter made none when it ran last, else 1.
    """

    cap: T
    rate: T
    proposed: T
    offered: T
    found: T


DRAFT_FIELDS = len(DraftFields._fields)
DRAFT_FIELD_INDEX = DraftFields(*range(DRAFT_FIELDS))
"""The column of each field."""


def worthwhile_drafts(rate: N, cap: N, drafts: int, cost: N) -> tuple[N, N]:
    """The number of drafts, of `cap` that are at most `drafts`, which are worth their cost, and the tokens that they are expected
    to add to a step, less their costs. rate, cap, cost: numbers, or int64 tensors of one shape. The tokens, and `cost` of one
    draft, are in units of 1 / RATE_ONE."""
    number, gain, reached = rate * 0, rate * 0, rate
    for index in range(drafts):
        is_worth_it = (index < cap) & (rate >= LEAST_RATE) & (COST_SHARE * reached >= cost)
        number = number + is_worth_it
        gain = gain + (reached - cost) * is_worth_it
        reached = reached * rate // RATE_ONE
    return number, gain


@dataclass(frozen=True, slots=True)
class DraftState:
    """Per-row state. The first dimension is the row, the null row last.

    text: int32 `[N, L + 1]`, prompt and output of each row in order; after its newest token the text of `Drafter.predicted_tokens`,
    then -1. The last column absorbs tokens that do not count. drafts: int64 `[N, K]`. fields: int64 `[N, F]`. adaptive: whether
    a row with a low rate verifies fewer, or none. costs: int64 `[N + 1]`, of a draft, by the number of active rows in the step:
    the tokens that steps without drafts would give in the time that it adds, in units of 1 / RATE_ONE; None if positions without
    a draft take as long. always_runs: whether the drafter also runs in steps of one position.
    """

    text: Tensor
    drafts: Tensor
    fields: Tensor
    adaptive: bool
    costs: Tensor | None = None
    always_runs: bool = True
    columns: DraftFields[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", DraftFields(*self.fields.unbind(1)))
