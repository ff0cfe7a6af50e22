"""What transformers makes of the matrix's parameters: its own processors and warpers, and behind them the engine's noise.

What a host says of a text (a grammar, a processor with history) comes between, as transformers has it or from our own code.

Shape legend: V vocabulary, W words of 64 ids.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from omni.frontend.vocabulary import Vocabulary
from omni.sampling import GREEDY, HostLogitsProcessor, SamplingParams
from omni_ar.sampling import gumbel
from support.sampling_reference import reference_logits, reference_warp


class AsAsked(LogitsProcessor):
    """All that the parameters do to logits. Under greedy decoding, what comes of it is what is drawn.

    params: in ids, of the request over its stage's own. start: ids that stand before the first generated one.
    """

    def __init__(
        self,
        params: SamplingParams,
        start: int,
        host_processors: Sequence[HostLogitsProcessor] = (),
        sample_index: int = 0,
    ) -> None:
        self._params = params.with_defaults(GREEDY)
        self._start = start
        self._processors = host_processors
        self._sample_index = torch.tensor([sample_index])

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        params, ids = self._params, input_ids[0].tolist()
        outputs = ids[self._start :]
        logits_V = reference_logits(scores[0], params, ids[: self._start], outputs)
        for processor in self._processors:
            allowed_W = processor.edit().allowed
            assert allowed_W is not None
            logits_V[~_bits(allowed_W, len(logits_V))] = -torch.inf
        for args in (params.processors or {}).values():
            unrepeated = NoRepeatNGramLogitsProcessor(args["size"])
            logits_V = unrepeated(torch.tensor([outputs], dtype=torch.int64), logits_V[None])[0]
        if params.temperature:
            assert params.seed is not None
            position = torch.tensor([len(outputs)])
            noise_V = gumbel(torch.tensor([params.seed]), self._sample_index, position, 0, 0, len(logits_V))[0]
            logits_V = reference_warp(logits_V, params) + noise_V
        return logits_V[None]


class Complete(StoppingCriteria):
    """Tells the host processors what was said, and ends where one of them does."""

    def __init__(self, host_processors: Sequence[HostLogitsProcessor]) -> None:
        self._processors = host_processors

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        over = [processor.push(int(input_ids[0, -1])) for processor in self._processors]
        return torch.tensor([any(over)])


def arguments(
    params: SamplingParams, start: int, host_processors: Sequence[HostLogitsProcessor] = (), sample_index: int = 0
) -> Mapping[str, Any]:
    """Of `generate`, but for what ends it by ids."""
    assert params.max_tokens is not None
    return {
        "max_new_tokens": params.max_tokens,
        "do_sample": False,
        "logits_processor": LogitsProcessorList([AsAsked(params, start, host_processors, sample_index)]),
        "stopping_criteria": StoppingCriteriaList([Complete(host_processors)] if host_processors else []),
    }


def generated(
    model: PreTrainedModel, prompt: Sequence[int], ends: Sequence[int], given: Mapping[str, Any]
) -> list[int]:
    """What the model says. ends: ids that end it."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), eos_token_id=list(ends), pad_token_id=ends[0], **given
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


def cut(tokens: Sequence[int], stops: Sequence[str], vocabulary: Vocabulary) -> tuple[list[int], list[int]]:
    """Given out and held back of tokens whose text ends with the first of `stops`: by trying every place."""
    texts = [stop.encode() for stop in stops]
    for count in range(1, len(tokens) + 1):
        written = [vocabulary.written(token) for token in tokens[:count]]
        text = b"".join(written)
        found = [(place + len(stop), place) for stop in texts if (place := text.find(stop)) >= 0]
        if found:
            begins = min(found)[1]
            given = next(n for n in range(count) if sum(map(len, written[: n + 1])) > begins)
            return list(tokens[:given]), list(tokens[given:count])
    return list(tokens), []


def _bits(words_W: Any, count: int) -> Tensor:
    """bool `[count]`: bit i of word w is id 64 * w + i; ids behind the last word are out."""
    bits = np.unpackbits(words_W.view(np.uint8), bitorder="little")[:count]
    return torch.from_numpy(np.pad(bits, (0, count - len(bits)))).bool()
