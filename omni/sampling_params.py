"""How tokens are chosen at one stage."""

import msgspec

from omni.errors import InputError


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling at one autoregressive stage. A field left None takes the stage's default.

    Applied in transformers' order: repetition penalty, suppressed ids, temperature, top-k, top-p.

    max_tokens: tokens to generate at most, at least 1.
    temperature: 0 is greedy; otherwise 0.001 to 100.
    top_k: keep the k most likely; 0 keeps all.
    top_p: keep the smallest set of tokens whose probability reaches this, in (0, 1]; 1 keeps all.
    repetition_penalty: divides positive and multiplies negative logits of tokens seen so far; 1 is none.
    seed: makes a request's tokens reproducible whatever else runs; None draws one.
    stop_token_ids: ids that end generation, in addition to the stage's own.
    suppress_token_ids: ids that are never generated, in addition to the stage's own.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] | None = None
    suppress_token_ids: tuple[int, ...] | None = None

    def over(self, defaults: "SamplingParams") -> "SamplingParams":
        """These parameters, with `defaults` where a field is None."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(defaults, **given)

    def check(self, field: str) -> None:
        """Raises InputError naming `field` and the parameter that is out of range."""
        for name, valid, remedy in (
            ("max_tokens", _within(self.max_tokens, 1, 2**31 - 1), "use at least 1, below 2**31"),
            # Below a thousandth, float32 logits over the temperature overflow where greedy is meant.
            (
                "temperature",
                self.temperature == 0 or _within(self.temperature, 0.001, 100),
                "use 0 (greedy), or 0.001 to 100",
            ),
            ("top_k", _within(self.top_k, 0, 2**31 - 1), "use 0 (off) or more, below 2**31"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "use a number above 0, up to 1 (off)"),
            ("repetition_penalty", _within(self.repetition_penalty, 0.01, 100), "use 0.01 to 100; 1 is none"),
            ("seed", self.seed is None or 0 <= self.seed < 2**63, "use 0 to 2**63 - 1"),
            ("stop_token_ids", _ids(self.stop_token_ids), "use ids of the vocabulary"),
            ("suppress_token_ids", _ids(self.suppress_token_ids), "use ids of the vocabulary"),
        ):
            if not valid:
                value = msgspec.structs.asdict(self)[name]
                raise InputError(f"{field}.{name}", f"{value!r} is out of range", remedy)


def _within(value: float | None, low: float, high: float) -> bool:
    return value is None or low <= value <= high


def _ids(ids: tuple[int, ...] | None) -> bool:
    return ids is None or all(0 <= i < 2**31 for i in ids)
