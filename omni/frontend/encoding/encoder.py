"""A tokenizer's encoding, for several threads at once."""

import json
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from omni.frontend.encoding.limit import PromptLimit
from omni.frontend.encoding.parts import PART, may_part, parts

Ids = NDArray[np.int64]


class Encoder:
    """The ids that a tokenizer of transformers gives a text. Threads do not wait for each other, and encode without the
    interpreter lock.

    What threads must not share of a fast tokenizer is its call: it sets padding and truncation, which belong to the tokenizer. Here
    are tokenizers of the same model that nobody changes. Tokenizers written in Python take turns.

    control: added tokens that are control tokens, besides the special ones.
    """

    def __init__(self, tokenizer: Any, control: Collection[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._whole: Tokenizer | None = None
        """Takes the written form of a control token for its id."""
        self._plain: Tokenizer | None = None
        """Takes it for text."""
        self._may_part = False
        if isinstance(tokenizer, PreTrainedTokenizerFast):
            backend = tokenizer.backend_tokenizer
            self._whole, self._plain = _copy(backend, control), _copy(backend, control)
            self._plain.encode_special_tokens = True
            self._may_part = may_part(backend)

    @property
    def normal(self) -> Callable[[str], str] | None:
        """What the tokenizer does to a text before it looks for words; None if nothing."""
        normalizer = self._whole.normalizer if self._whole is not None else None
        return None if normalizer is None else normalizer.normalize_str

    @property
    def tells_words_from_text(self) -> bool:
        """Whether it has `encode_pieces`."""
        return self._plain is not None and not _looks_back(self._plain)

    def encode(self, text: str, *, bare: bool = False, limit: PromptLimit | None = None) -> Ids:
        """Int64 `[T]`, with what the tokenizer puts around every text, unless it is to be `bare`.

        Raises InputError for a long text beyond `limit`, without reading it to its end.
        """
        if self._whole is None:
            with self._lock:
                return np.asarray(self._tokenizer(text, add_special_tokens=not bare)["input_ids"], np.int64)
        if not self._may_part or len(text) <= PART:
            return _ids(self._whole, text, bare)
        return self._framed(self._joined(self._whole, [text], limit), bare)

    def encode_pieces(
        self, pieces: Iterable[int | str], *, bare: bool = False, limit: PromptLimit | None = None
    ) -> Ids:
        """The same of a text that lies in pieces: ids of control tokens, and what is between them, in which there are none."""
        assert self._plain is not None
        return self._framed(self._joined(self._plain, pieces, limit), bare)

    def longest_token(self) -> int:
        """Bytes of text that an id stands for at most."""
        ids = self._tokenizer.get_vocab()
        decoder = self._whole.decoder if self._whole is not None else None
        if decoder is not None and json.loads(decoder.__getstate__())["type"] == "ByteLevel":
            # A byte is written as one sign.
            added = {word.content for word in self._tokenizer.added_tokens_decoder.values()}
            return max(len(word.encode()) if word in added else len(word) for word in ids)
        return max(len(word.encode()) for word in ids)

    def _joined(self, tokenizer: Tokenizer, pieces: Iterable[int | str], limit: PromptLimit | None) -> Ids:
        taken, count = [np.empty(0, np.int64)], 0
        for piece in pieces:
            if isinstance(piece, int):
                taken.append(np.array([piece], np.int64))
                count += 1
                continue
            for part in parts(piece) if self._may_part else (piece,):
                taken.append(_ids(tokenizer, part, True))
                count += len(taken[-1])
                if limit is not None:
                    limit.check_tokens(count)
        return np.concatenate(taken)

    def _framed(self, ids: Ids, bare: bool) -> Ids:
        assert self._whole is not None
        if bare:
            return ids
        alone, inside = (_ids(self._whole, "a", bare).tolist() for bare in (False, True))
        place = next(i for i in range(len(alone)) if alone[i : i + len(inside)] == inside)
        ends = (alone[:place], ids, alone[place + len(inside) :])
        return np.concatenate([np.asarray(each, np.int64) for each in ends])


def _ids(tokenizer: Tokenizer, text: str, bare: bool) -> Ids:
    # Of the library's ways to encode, those of a batch release the interpreter lock.
    return np.asarray(tokenizer.encode_batch_fast([text], add_special_tokens=not bare)[0].ids, np.int64)


def _copy(tokenizer: Tokenizer, control: Collection[str]) -> Tokenizer:
    """The same tokenizer, of the same model in memory, in which also `control` are special."""
    copy = Tokenizer(tokenizer.model)
    copy.normalizer, copy.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    copy.post_processor, copy.decoder = tokenizer.post_processor, tokenizer.decoder
    added = tokenizer.get_added_tokens_decoder()
    for _, word in sorted(added.items()):
        copy.add_tokens([_special(word) if word.special or word.content in control else word])
    if {i: word.content for i, word in copy.get_added_tokens_decoder().items()} != {
        i: word.content for i, word in added.items()
    }:
        # The ids of added tokens have gaps, which only a file can tell.
        state = json.loads(tokenizer.to_str()) | {"truncation": None, "padding": None}
        for word in state["added_tokens"]:
            word["special"] |= word["content"] in control
        copy = Tokenizer.from_str(json.dumps(state))
    return copy


def _special(word: AddedToken) -> AddedToken:
    flags = {name: bool(state) for name, state in word.__getstate__().items() if name != "content"}
    return AddedToken(word.content, **flags | {"special": True})


def _looks_back(tokenizer: Tokenizer) -> bool:
    """Whether a piece of a text is read differently where it does not begin the text."""
    step = tokenizer.pre_tokenizer
    return step is not None and b'"prepend_scheme":"first"' in step.__getstate__()
