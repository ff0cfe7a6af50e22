"""Cases of sampling."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import torch

from bench.kernel_cases import Buffers, Call, KernelCase
from bench.kernel_shapes import KernelSizes
from omni.sampling import GREEDY, SamplingParams
from omni_ar.kernels.sampling.state import NEVER, SamplingState
from omni_ar.sampling.pack import flags_of, needs_of
from omni_ar.sampling.resolve import resolve_sampling
from omni_ar.sampling.sampler import draw, sample

_NARROW = "top-k 50, top-p 0.8, penalty"
_KINDS: Mapping[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=1.0),
    "top-k 50": SamplingParams(temperature=1.0, top_k=50),
    _NARROW: SamplingParams(temperature=1.0, top_k=50, top_p=0.8, repetition_penalty=1.05),
}


@dataclass(frozen=True, slots=True)
class Rows:
    """A sampling state whose rows all have the same parameters."""

    state: SamplingState
    params: SamplingParams

    @classmethod
    def of(cls, params: SamplingParams, rows: int, vocab: int, device: torch.device) -> "Rows":
        def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        resolved = resolve_sampling(params, GREEDY, "bench", vocab)
        state = SamplingState.allocate(zeros, rows, vocab)
        parameters = msgspec.structs.asdict(resolved) | {"needs": needs_of(resolved), "sample_index": 0}
        for name, values in state.columns().items():
            values.fill_(parameters[name])
        state.stop_ids.fill_(-1)
        state.bad_words.fill_(NEVER)
        state.seed.copy_(torch.arange(rows))
        state.seen[:, ::7] = True
        return cls(state, resolved)


def cases(sizes: KernelSizes, buffers: Buffers) -> Iterator[KernelCase]:
    for rows in (sizes.rows[0], sizes.rows[-1]):
        for kind, params in _KINDS.items():
            vocab = sizes.thinker.vocab
            yield KernelCase(
                f"sample {kind}, {rows} x {vocab:,}", _sample(params, rows, vocab, buffers), rows * vocab * 4
            )
        vocab = sizes.talker.vocab
        make = _sample(_KINDS[_NARROW], rows, vocab, buffers)
        yield KernelCase(f"sample {_NARROW}, {rows} x {vocab:,}", make, rows * vocab * 4)
        vocab = sizes.predictor.vocab
        yield KernelCase(f"draw {rows} x {vocab:,}", _draw(rows, vocab, buffers), rows * vocab * buffers.item)


def _sample(params: SamplingParams, rows: int, vocab: int, b: Buffers) -> Callable[[], Call]:
    def make() -> Call:
        made = Rows.of(params, rows, vocab, b.device)
        logits, flags = torch.randn(rows, vocab, device=b.device), flags_of(made.params)
        which, position = b.arange(rows), b.arange(rows)
        return lambda: sample(logits, made.state, which, position, flags)

    return make


def _draw(rows: int, vocab: int, b: Buffers) -> Callable[[], Call]:
    def make() -> Call:
        made = Rows.of(SamplingParams(temperature=1.0, code_top_k=50, code_top_p=0.8), rows, vocab, b.device)
        logits, which, flags = b.randn(rows, vocab), b.arange(rows), flags_of(made.params)
        return lambda: draw(logits, made.state, which, which, 3, flags)

    return make
