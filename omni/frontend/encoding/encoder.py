"""Encoding with a tokenizer, from several threads at once."""

import json
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from omni.frontend.encoding.parts import PART, may_part, parts
from omni.frontend.limit import PromptLimit

Ids = NDArray[np.int64]


class Encoder:
    """Texts to the ids of a tokenizer of transformers. Threads do not wait for each other, and encode without the interpreter lock.
    control: added tokens that are control tokens, besides the special ones.

    Threads must not share the call of a fast tokenizer, which sets padding and truncation on it. The copies here share its model
    and never change. Tokenizers written in Python are called by one thread at a time.
    """

    def __init__(self, tokenizer: Any, control: Collection[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._whole: Tokenizer | None = None
        """Encodes the written form of a control token as its id."""
        self._plain: Tokenizer | None = None
        """Encodes it as text."""
        self._may_part = False
        if isinstance(tokenizer, PreTrainedTokenizerFast):
            backend = tokenizer.backend_tokenizer
            self._whole, self._plain = _copy(backend, control), _copy(backend, control)
            self._plain.encode_special_tokens = True
            self._may_part = may_part(backend)

    @property
    def backend(self) -> Tokenizer | None:
        """The copy that encodes the written form of a control token as its id; None for a tokenizer written in Python."""
        return self._whole

    @property
    def normalize(self) -> Callable[[str], str] | None:
        """The tokenizer's normalization of texts; None without one."""
        normalizer = self._whole.normalizer if self._whole is not None else None
        return None if normalizer is None else normalizer.normalize_str

    @property
    def supports_pieces(self) -> bool:
        """Whether `encode_pieces` works for this tokenizer: whether it encodes a text as at the beginning of a longer one."""
        step = self._plain.pre_tokenizer if self._plain is not None else None
        return self._plain is not None and (step is None or b'"prepend_scheme":"first"' not in step.__getstate__())

    def encode(self, text: str, *, add_special_tokens: bool = True, limit: PromptLimit | None = None) -> Ids:
        """Returns the text's token ids, int64 `[T]`. add_special_tokens: whether to add those that the tokenizer puts around every
        text. Raises InputError for a long text beyond `limit`, without reading it to its end."""
        if self._whole is None:
            with self._lock:
                return np.asarray(self._tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"], np.int64)
        if not self._may_part or len(text) <= PART:
            return _ids(self._whole, text, add_special_tokens)
        return self._framed(self._joined(self._whole, [text], limit), add_special_tokens)

    def encode_pieces(
        self, pieces: Iterable[int | str], *, add_special_tokens: bool = True, limit: PromptLimit | None = None
    ) -> Ids:
        """As `encode`, for a text in pieces: ids of control tokens, and texts without control tokens between them."""
        assert self._plain is not None
        return self._framed(self._joined(self._plain, pieces, limit), add_special_tokens)

    def longest_token(self) -> int:
        """Bytes of the longest token."""
        ids = self._tokenizer.get_vocab()
        decoder = self._whole.decoder if self._whole is not None else None
        if decoder is not None and json.loads(decoder.__getstate__())["type"] == "ByteLevel":
            # Each byte is written as one character.
            added = {word.content for word in self._tokenizer.added_tokens_decoder.values()}
            return max(len(word.encode()) if word in added else len(word) for word in ids)
        return max(len(word.encode()) for word in ids)

    def _joined(self, tokenizer: Tokenizer, pieces: Iterable[int | str], limit: PromptLimit | None) -> Ids:
        ids, count = [np.empty(0, np.int64)], 0
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(np.array([piece], np.int64))
                count += 1
                continue
            for part in parts(piece) if self._may_part else (piece,):
                ids.append(_ids(tokenizer, part, False))
                count += len(ids[-1])
                if limit is not None:
                    limit.check_tokens(count)
        return np.concatenate(ids)

    def _framed(self, ids: Ids, add_special_tokens: bool) -> Ids:
        assert self._whole is not None
        if not add_special_tokens:
            return ids
        framed, inside = (_ids(self._whole, "a", special).tolist() for special in (True, False))
        start = next(i for i in range(len(framed)) if framed[i : i + len(inside)] == inside)
        ends = (framed[:start], ids, framed[start + len(inside) :])
        return np.concatenate([np.asarray(each, np.int64) for each in ends])


def _ids(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> Ids:
    # Only the library's batch methods release the interpreter lock.
    return np.asarray(tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids, np.int64)


def _copy(tokenizer: Tokenizer, control: Collection[str]) -> Tokenizer:
    """A tokenizer that shares the model in memory, with `control` marked as special."""
    copy = Tokenizer(tokenizer.model)
    copy.normalizer, copy.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    copy.post_processor, copy.decoder = tokenizer.post_processor, tokenizer.decoder
    added = tokenizer.get_added_tokens_decoder()
    for _, word in sorted(added.items()):
        if word.special or word.content in control:
            flags = {name: bool(state) for name, state in word.__getstate__().items() if name != "content"}
            word = AddedToken(word.content, **flags | {"special": True})
        copy.add_tokens([word])
    copied = {i: word.content for i, word in copy.get_added_tokens_decoder().items()}
    if copied != {i: word.content for i, word in added.items()}:
        # The ids of added tokens have gaps, which only a file can express.
        state = json.loads(tokenizer.to_str()) | {"truncation": None, "padding": None}
        for word in state["added_tokens"]:
            word["special"] |= word["content"] in control
        copy = Tokenizer.from_str(json.dumps(state))
    return copy
