"""Stop strings in tokens, against a search of the whole text after every token."""

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from omni.frontend.stops import StopStrings, StopTexts, stopped_text
from omni.frontend.vocabulary import Vocabulary
from omni.sampling import StopVerdict


def run(stops: Sequence[str], tokens: Sequence[bytes], min_tokens: int = 0) -> list[StopVerdict]:
    """Verdicts until the text stops."""
    watch = StopStrings(StopTexts(stops), Vocabulary(tuple(tokens)), min_tokens)
    verdicts: list[StopVerdict] = []
    for token in range(len(tokens)):
        verdicts.append(watch.push(token))
        if verdicts[-1].stopped:
            break
    return verdicts


def covering(tokens: Sequence[bytes], start: int) -> int:
    """How many tokens reach from byte `start` to the end."""
    return sum(len(b"".join(tokens[: place + 1])) > start for place in range(len(tokens)))


def first_end(text: bytes, stops: Sequence[bytes], after: int) -> tuple[int, int] | None:
    """Start and end of the stop string that ends first behind byte `after`; the longest of those that end there."""
    for end in range(after + 1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return min(starts), end
    return None


def expected(stops: Sequence[bytes], tokens: Sequence[bytes], min_tokens: int) -> list[StopVerdict]:
    verdicts: list[StopVerdict] = []
    for count in range(1, len(tokens) + 1):
        said, before = tokens[:count], len(b"".join(tokens[: count - 1]))
        text = b"".join(said)
        match = first_end(text, stops, before) if count >= min_tokens else None
        if match is not None:
            return [*verdicts, StopVerdict(covering(said, match[0]), True)]
        begun = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
        verdicts.append(StopVerdict(covering(said, len(text) - max(begun)) if begun else 0, False))
    return verdicts


words = st.text("ab\u00fc", min_size=1, max_size=5)
pieces = st.lists(st.lists(st.sampled_from("ab\u00fc"), max_size=4).map(lambda s: "".join(s).encode()), max_size=12)


@given(
    stops=st.lists(words, min_size=1, max_size=4), tokens=pieces, min_tokens=st.integers(0, 6), cut=st.integers(1, 3)
)
@example(stops=["aab"], tokens=[b"a", b"a", b"a", b"b"], min_tokens=0, cut=3)
@example(stops=["b", "aba"], tokens=[b"ab", b"a"], min_tokens=2, cut=3)
@example(stops=["abab", "ba"], tokens=[b"a", b"", b"bab"], min_tokens=0, cut=3)
def test_stops_are_those_of_a_search_of_the_whole_text(
    stops: list[str], tokens: list[bytes], min_tokens: int, cut: int
):
    # Also tokens that end within a character.
    tokens = [part for token in tokens for part in ((token[:cut], token[cut:]) if len(token) > cut else (token,))]
    verdicts = run(stops, tokens, min_tokens)
    assert verdicts == expected([stop.encode() for stop in stops], tokens, min_tokens)
    if verdicts and verdicts[-1].stopped:
        said = tokens[: len(verdicts)]
        start, _ = first_end(b"".join(said), [s.encode() for s in stops], len(b"".join(said[:-1]))) or (0, 0)
        assert stopped_text(StopTexts(stops), said[len(said) - verdicts[-1].withheld :]) == b"".join(said)[start:]
