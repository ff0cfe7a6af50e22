"""From what a request asks for to how it is sampled."""

import secrets

import msgspec

from omni.errors import InputError
from omni.sampling_params import SamplingParams
from omni_ar.run.limits import MAX_STOP_IDS, MAX_SUPPRESSED_IDS


def resolve_sampling(asked: SamplingParams, own: SamplingParams, stage: str, vocab_size: int) -> SamplingParams:
    """Every field set: what is asked for, over the stage's own. Raises InputError naming the field."""
    sampling = msgspec.structs.replace(
        asked.over(own),
        # A request adds ids to the stage's own: it cannot make a stage run on past its end or say what it has no sound for.
        stop_token_ids=_united(own.stop_token_ids, asked.stop_token_ids),
        suppress_token_ids=_united(own.suppress_token_ids, asked.suppress_token_ids),
    )
    if sampling.seed is None:
        sampling = msgspec.structs.replace(sampling, seed=secrets.randbits(63))
    stops, suppressed = sampling.stop_token_ids or (), sampling.suppress_token_ids or ()
    _check_ids(f"sampling.{stage}.stop_token_ids", stops, MAX_STOP_IDS, vocab_size)
    _check_ids(f"sampling.{stage}.suppress_token_ids", suppressed, MAX_SUPPRESSED_IDS, vocab_size)
    if len(suppressed) >= vocab_size:
        raise InputError(f"sampling.{stage}.suppress_token_ids", "leave nothing to say", "suppress fewer ids")
    return sampling


def _check_ids(field: str, ids: tuple[int, ...], most: int, vocab_size: int) -> None:
    if len(ids) > most:
        raise InputError(field, f"are {len(ids)} ids, the stage's own included", f"use at most {most} in all")
    if ids and max(ids) >= vocab_size:
        raise InputError(field, f"{max(ids)} is not in the vocabulary", f"use ids below {vocab_size}")


def _united(own: tuple[int, ...] | None, asked: tuple[int, ...] | None) -> tuple[int, ...]:
    return tuple(dict.fromkeys((*(own or ()), *(asked or ()))))
