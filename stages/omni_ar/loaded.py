"""A loaded autoregressive stage, before its KV blocks are allocated."""

import logging
from contextlib import AbstractContextManager
from itertools import islice

from omni.device import AllocationCount
from omni.device.graphs import captured_lengths, captured_sizes
from omni.errors import ConfigError
from omni.sampling import GREEDY
from omni.stage import Footprint, StageContext, capture_progress, memory_errors, module_bytes
from omni_ar.attention.select import select_backend
from omni_ar.model import ArModel
from omni_ar.options import ArOptions
from omni_ar.processors import ProcessorRegistry
from omni_ar.run.limits import Limits
from omni_ar.run.profile import run_largest_steps
from omni_ar.run.runner import Runner
from omni_ar.run.state import block_bytes
from omni_ar.run.worker import ArWorker
from omni_ar.sampling.resolve import check_defaults

_log = logging.getLogger(__name__)

_HARDLY_ANY = 3
_BUFFERS = "the row buffers"
_ROWS = ("max_num_seqs", "max_model_len", "max_num_batched_tokens")
"""Options that reduce the buffers of rows and steps."""


class LoadedAr:
    """Pages are KV blocks and their payload pages. The null block counts as fixed memory."""

    def __init__(self, context: StageContext, model: ArModel) -> None:
        """Raises ConfigError for a length beyond the model's positions, and for default sampling and numbers of blocks
        with which every request would fail."""
        assert isinstance(context.options, ArOptions)
        self._context = context
        self._options = context.options
        self._model = model
        self._processors = ProcessorRegistry(context.logits_processors, model.shape.vocab_size)
        sampling, field = self._options.sampling, f"{context.stage.name}.sampling"
        self._processors.check_defaults(sampling.processors, f"{field}.processors")
        check_defaults(sampling, field, model.shape.vocab_size)
        self._limits = Limits.of(context.stage.name, context.options, model.shape, self._processors.on_device)
        self._check_blocks()
        count = AllocationCount(context.device.torch_device)
        with count, self._room_for(_BUFFERS, *_ROWS):
            self._runner = self._new_runner()
            worker = self._new_worker(0)
        lengths = captured_lengths(self._options.graph_chunk_sizes, self._limits.max_num_batched_tokens)
        self._chunk_sizes = lengths if self._runner.captures_chunks else ()
        self._batch_sizes = captured_sizes(self._options.graph_batch_sizes, self._limits.rows)
        self.footprint = Footprint(
            weights=module_bytes(model),
            fixed=count.live,
            page_bytes=block_bytes(model, self._limits.block_size, context.dtype, len(self._limits.hidden_layers)),
            fewest_pages=self._limits.max_blocks,
            most_pages=self._limits.rows * self._limits.max_blocks,
            chosen_pages=self._options.num_blocks,
        )
        worker.close()

    def _check_blocks(self) -> None:
        """Raises ConfigError for `_HARDLY_ANY` blocks or fewer if no request of default length fits. More blocks are
        accepted, for requests that ask for fewer tokens."""
        chosen, size, length = self._options.num_blocks, self._limits.block_size, self._limits.max_model_len
        most = self._options.sampling.with_defaults(GREEDY).max_tokens
        assert most is not None
        tokens = 1 + min(most, length - 1)
        if chosen is not None and chosen <= _HARDLY_ANY and chosen * size < tokens:
            name, holds = self._context.stage.name, chosen * size
            problem = f"{chosen} hold {holds:,} tokens, and a request that leaves max_tokens open may take {tokens:,}"
            remedy = f"use at least {-(-tokens // size)}, or lower {name}.sampling.max_tokens or {name}.max_model_len"
            raise ConfigError(f"{name}.num_blocks", problem, remedy)

    def measure(self) -> int:
        with self._room_for("the largest steps", *_ROWS):
            peak = self._context.device.measure_peak(self._run_largest_steps)
        # The old runner's memory is freed first: both may not fit.
        del self._runner
        with self._room_for(_BUFFERS, *_ROWS):
            self._runner = self._new_runner()
        return peak

    def start(self, pages: int) -> ArWorker:
        with self._room_for(f"{pages} KV blocks", "num_blocks", "max_num_seqs", "max_model_len"):
            self._runner.allocate(pages)
        if self._context.graphs:
            with self._room_for("the captured steps", "graph_batch_sizes", "graph_chunk_sizes"):
                self._capture()
        with self._room_for(_BUFFERS, *_ROWS):
            return self._new_worker(pages)

    def warm_up(self) -> None:
        self._runner.allocate(self._limits.max_blocks)
        run_largest_steps(self._runner, self._model.shape, self._limits)
        if self._context.graphs:
            self._runner.capture_chunks(self._chunk_sizes)
            self._runner.capture(self._batch_sizes)

    def _capture(self) -> None:
        name, chunks = self._context.stage.name, self._chunk_sizes
        if not self._runner.captures_chunks:
            backend, own = f"attention_backend {self._options.attention_backend!r}", "the attention of this model"
            cause = backend if self._model.shape.captures_prefills else own
            _log.warning("%s: steps with prompts run uncaptured, as always with %s", name, cause)
        sizes = capture_progress(name, (*chunks, *self._batch_sizes))
        self._runner.capture_chunks(islice(sizes, len(chunks)))
        self._runner.capture(sizes)

    def _run_largest_steps(self) -> None:
        run_largest_steps(self._runner, self._model.shape, self._limits)
        if self._context.graphs:
            # The smaller captures fit into the memory of the largest.
            self._runner.capture_chunks(self._chunk_sizes[:1])
            self._runner.capture(self._batch_sizes[:1])

    def _new_runner(self) -> Runner:
        context = self._context
        name, device, dtype = context.stage.name, context.device, context.dtype
        chosen, size = self._options.attention_backend, self._limits.block_size
        backend = select_backend(name, chosen, device, shape=self._model.shape, dtype=dtype, block_size=size)
        processors = self._processors.on_device
        runner = Runner(
            name,
            device,
            model=self._model,
            backend=backend,
            limits=self._limits,
            dtype=dtype,
            priority=context.stage.priority,
            processors=processors,
        )
        runner.allocate(0)
        return runner

    def _room_for(self, what: str, *options: str) -> AbstractContextManager[None]:
        return memory_errors(self._context.stage.name, what, self._context.device, options)

    def _new_worker(self, pages: int) -> ArWorker:
        shape, name = self._model.shape, self._context.stage.name
        return ArWorker(
            name,
            self._runner,
            shape=shape,
            limits=self._limits,
            options=self._options,
            num_blocks=pages,
            processors=self._processors,
            listeners=self._context.listeners,
        )
