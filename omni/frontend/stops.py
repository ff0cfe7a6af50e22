"""Stop strings, found in the bytes of tokens."""

from collections import deque
from collections.abc import Iterable, Sequence

from omni.frontend.vocabulary import Vocabulary
from omni.sampling import StopVerdict


class StopTexts:
    """The stop strings of a request as an automaton over bytes (Aho and Corasick). Immutable, shared by its samples. A state is the
    longest suffix of the bytes so far that begins a stop string. The text ends at the stop string that is complete first; of
    several complete at the same byte, at the longest."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._next: list[dict[int, int]] = [{}]
        self.found = [0]
        """Bytes of the longest stop string that is complete in each state; 0 if none is."""
        self._depth = [0]
        for text in texts:
            self._add(text.encode())
        self._fall = [0] * len(self._next)
        """The state of the next shorter suffix, for each state."""
        self.withheld = [0] * len(self._next)
        """Number of newest bytes that begin an incomplete stop string, in each state."""
        self._connect()

    def step(self, state: int, byte: int) -> int:
        """The state after one more byte. The first state is 0."""
        while state and byte not in self._next[state]:
            state = self._fall[state]
        return self._next[state].get(byte, 0)

    def _add(self, text: bytes) -> None:
        state = 0
        for byte in text:
            if byte not in self._next[state]:
                self._next[state][byte] = len(self._next)
                self._next.append({})
                self.found.append(0)
                self._depth.append(self._depth[state] + 1)
            state = self._next[state][byte]
        self.found[state] = len(text)

    def _connect(self) -> None:
        # Shallow states first: a state falls to one that is less deep.
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            fall = self._fall[state]
            self.withheld[state] = self._depth[state] if self._next[state] else self.withheld[fall]
            self.found[state] = self.found[state] or self.found[fall]
            for byte, longer in self._next[state].items():
                self._fall[longer] = self.step(fall, byte)
                waiting.append(longer)


class StopStrings:
    """A `StopMatcher` for one request. Stop strings complete before `min_tokens` tokens are ignored."""

    def __init__(self, texts: StopTexts, vocabulary: Vocabulary, min_tokens: int) -> None:
        self._texts = texts
        self._vocabulary = vocabulary
        self._min_tokens = min_tokens
        self._tokens = 0
        self._state = 0
        self._recent: deque[int] = deque()
        """Bytes of the newest tokens, those that may belong to a stop string."""

    def push(self, token: int) -> StopVerdict:
        written = self._vocabulary.written(token)
        self._tokens += 1
        self._recent.append(len(written))
        for index, byte in enumerate(written):
            self._state = self._texts.step(self._state, byte)
            found = self._texts.found[self._state]
            if found and self._tokens >= self._min_tokens:
                return StopVerdict(self._covering(found + len(written) - index - 1), True)
        verdict = StopVerdict(self._covering(self._texts.withheld[self._state]), False)
        while len(self._recent) > verdict.withheld:
            self._recent.popleft()
        return verdict

    def _covering(self, count: int) -> int:
        """Number of newest tokens that hold the newest `count` bytes."""
        tokens = 0
        for length in reversed(self._recent):
            if count <= 0:
                break
            tokens, count = tokens + 1, count - length
        return tokens


def stopped_text(texts: StopTexts, pieces: Sequence[bytes]) -> bytes:
    """The bytes from the stop string on, of a text that it ended in the last of `pieces`: bytes of the tokens that hold it, as many
    as `StopVerdict.withheld`."""
    text = b"".join(pieces)
    state = 0
    for index, byte in enumerate(text):
        state = texts.step(state, byte)
        # Stop strings that were complete earlier came before `min_tokens`.
        if texts.found[state] and index >= len(text) - len(pieces[-1]):
            return text[index + 1 - texts.found[state] :]
    return b""
