"""Keys of prefix blocks against the content that they stand for, spelled out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_ar.inputs import Placeholder, Prompt
from omni_ar.run.blocks.pool import PrefixKeys
from tests.support.ar_driver import plain_prompt

AXES = 2
LENGTH = 12
Slot = tuple[tuple[int, ...], str | None, str]


@dataclass(frozen=True)
class Said:
    """A prompt and the tokens generated after it. slots: positions, key and name of each embedding."""

    columns: tuple[tuple[int, ...], ...]
    positions: tuple[tuple[int, ...], ...]
    next_position: int
    slots: tuple[Slot, ...]
    salt: str
    outputs: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.columns[0])

    def prefix_keys(self, size: int) -> PrefixKeys:
        slots = tuple(
            Placeholder(name=name, index=index, positions=np.array(positions, np.int64), key=key)
            for index, (positions, key, name) in enumerate(self.slots)
        )
        columns, positions = np.array(self.columns, np.int64), np.array(self.positions, np.int64)
        prompt = Prompt(columns=columns, positions=positions, next_position=self.next_position, placeholders=slots)
        return PrefixKeys(prompt, self.salt, size, outputs=True)

    def keys(self, size: int, count: int = 99) -> list[bytes]:
        return self.prefix_keys(size).first(count, self.outputs)

    def content(self, end: int) -> list[object] | None:
        """All that the first `end` tokens depend on; None where something unknown stands among them."""
        said: list[object] = [self.salt]
        for place in range(end):
            if place < self.length:
                token = [row[place] for row in (*self.columns, *self.positions)]
            else:
                token = [self.outputs[place - self.length]] + [self.next_position + place - self.length] * AXES
            said.append(token)
            for positions, key, name in self.slots:
                if place in positions:
                    if key is None:
                        return None
                    said.append((name, key, positions.index(place)))
        return said


def in_order(slots: Sequence[Slot]) -> tuple[Slot, ...]:
    """As adapters give them. The same slots in another order are only taken for something new."""
    return tuple(sorted(slots, key=lambda slot: (slot[0], slot[1] or "", slot[2])))


@st.composite
def talks(draw: st.DrawFn) -> Said:
    length = draw(st.integers(1, LENGTH))
    ids = st.integers(0, 1)
    row = st.lists(ids, min_size=length, max_size=length).map(tuple)
    slots = []
    for _ in range(draw(st.integers(0, 2))):
        places = tuple(sorted(draw(st.sets(st.integers(0, length - 1), min_size=1, max_size=4))))
        slots.append((places, draw(st.sampled_from(["p", "q", None])), draw(st.sampled_from(["image", "sound"]))))
    return Said(
        columns=(draw(row),),
        positions=tuple(draw(row) for _ in range(AXES)),
        next_position=draw(st.integers(0, 3)),
        slots=in_order(slots),
        salt=draw(st.sampled_from(["", "s"])),
        outputs=tuple(draw(st.lists(ids, max_size=6))),
    )


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Said, Said]:
    """Two that differ in little, so that much of them agrees."""
    one, other = draw(talks()), draw(talks())
    changed = draw(st.sets(st.sampled_from(["salt", "outputs", "next_position", "slots", "id", "position"])))
    fields = {name: vars(other)[name] for name in changed & {"salt", "outputs", "next_position"}}
    if "slots" in changed:
        fits = [slot for slot in (*other.slots, *one.slots) if slot[0][-1] < one.length]
        fields["slots"] = in_order(draw(st.permutations(fits))[:2])
    place = draw(st.integers(0, one.length - 1))
    if "id" in changed:
        fields["columns"] = (flipped(one.columns[0], place),)
    if "position" in changed:
        fields["positions"] = (one.positions[0], flipped(one.positions[1], place))
    return one, replace(one, **fields)


def flipped(row: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*row[:place], 1 - row[place], *row[place + 1 :])


@given(pairs(), st.integers(1, 5))
def test_keys_agree_exactly_when_all_that_a_block_depends_on_agrees(pair: tuple[Said, Said], size: int):
    one, other = pair
    for index, (mine, theirs) in enumerate(zip(one.keys(size), other.keys(size), strict=False)):
        end = (index + 1) * size
        assert (mine == theirs) == (one.content(end) == other.content(end))


def test_two_pieces_of_an_embedding_are_not_its_first_piece_twice():
    one = Said(((1, 1),), ((0, 1), (0, 1)), 2, (((0, 1), "p", "image"),), "", ())
    other = replace(one, slots=(((0,), "p", "image"), ((1,), "p", "image")))
    mine, theirs = one.keys(1), other.keys(1)
    assert mine[0] == theirs[0]
    assert mine[1] != theirs[1]


@given(talks(), st.integers(1, 5))
def test_the_chain_ends_before_the_first_thing_without_a_key(said: Said, size: int):
    total = said.length + len(said.outputs)
    full = [end for end in range(size, total + 1, size) if said.content(end) is not None]
    if any(key is None for _, key, _ in said.slots):
        # What follows the prompt is not keyed either.
        full = [end for end in full if end <= said.length]
    keys = said.keys(size)
    assert len(keys) == len(full)
    assert said.keys(size, count=1) == keys[:1]


@given(talks(), st.integers(1, 5), st.data())
def test_generated_tokens_have_the_keys_of_the_same_tokens_in_a_prompt(said: Said, size: int, data: st.DataObject):
    moved = data.draw(st.integers(0, len(said.outputs)))
    after = tuple(said.next_position + place for place in range(moved))
    later = replace(
        said,
        columns=((*said.columns[0], *said.outputs[:moved]),),
        positions=tuple((*row, *after) for row in said.positions),
        next_position=said.next_position + moved,
        outputs=said.outputs[moved:],
    )
    shared = min(len(said.keys(size)), len(later.keys(size)))
    assert said.keys(size)[:shared] == later.keys(size)[:shared]
    if all(key is not None for _, key, _ in said.slots):
        assert shared == (said.length + len(said.outputs)) // size


@given(talks(), st.integers(1, 5))
def test_keys_computed_step_by_step_equal_those_computed_at_once(said: Said, size: int):
    keys = said.prefix_keys(size)
    made: list[bytes] = []
    for known in range(len(said.outputs) + 1):
        made = keys.first((said.length + known) // size, said.outputs[:known])
    assert made == said.keys(size)


@pytest.mark.parametrize("columns", [1, 2])
def test_a_model_whose_ids_are_not_enough_keys_prompts_only(columns: int):
    prompt = plain_prompt(range(9), columns=np.zeros((columns, 9), np.int64))
    outputs: Sequence[int] = [1] * 9
    assert len(PrefixKeys(prompt, "", 3, outputs=False).first(9, outputs)) == 3
    assert len(PrefixKeys(prompt, "", 3, outputs=True).first(9, outputs)) == (6 if columns == 1 else 3)
