"""A loaded autoregressive stage, before its KV blocks are allocated."""

from contextlib import AbstractContextManager
from itertools import islice

from omni.device import AllocationCount, Device
from omni.device.graphs import captured_lengths, captured_sizes
from omni.device.meta import MetaDevice
from omni.errors import ConfigError
from omni.parallel.watch import StepWatch
from omni.sampling import GREEDY
from omni.stage import Footprint, RowCost, StageContext, capture_progress, memory_errors, module_bytes
from omni.utils.log import safe_logger
from omni_ar.attention.select import select_backend
from omni_ar.drafters import PagedDrafter
from omni_ar.drafters.load import load_drafter
from omni_ar.model import ArModel
from omni_ar.options import ArOptions
from omni_ar.processors import ProcessorRegistry
from omni_ar.run.follower import FollowerWorker
from omni_ar.run.limits import Limits
from omni_ar.run.profile import run_largest_steps, time_decodes
from omni_ar.run.runner import Runner
from omni_ar.run.state import block_bytes, drafter_cache
from omni_ar.run.worker import ArWorker
from omni_ar.sampling.resolve import check_defaults

_log = safe_logger(__name__)

_HARDLY_ANY = 3
_BUFFERS = "the row buffers"
_ROWS = ("max_num_seqs", "max_model_len", "max_num_batched_tokens")
"""Options that reduce the buffers of rows and steps."""
_COUNTED = 16
_TIMED_ROWS = 32
"""Rows of the measured steps, if the user chose no number: enough to keep all layer ranges busy."""
_TYPICAL_TOKENS = 1024
_TYPICAL_SHARE = 8
"""A request of typical length: a spoken turn with a page of text or a picture before it, or a part of `max_model_len` where the
user wants long ones. Pages for requests of full length would remain unused, or leave few rows. Longer requests take blocks of the
prefix cache, and finally preempt other requests."""


class LoadedAr:
    """Pages are KV blocks and their payload pages. The null block counts as fixed memory."""

    def __init__(self, context: StageContext, model: ArModel) -> None:
        """Raises ConfigError for a length beyond the model's positions, and for default sampling and numbers of blocks
        with which every request would fail."""
        assert isinstance(context.options, ArOptions)
        self._context = context
        self._pipeline = context.ranks.pipeline if context.ranks is not None else None
        self._options = context.options
        self._model = model
        self._processors = ProcessorRegistry(context.logits_processors, model.shape.vocab_size)
        sampling, field = self._options.sampling, f"{context.stage.name}.sampling"
        self._processors.check_defaults(sampling.processors, f"{field}.processors")
        check_defaults(sampling, field, model.shape.vocab_size)
        self.chosen_rows = context.options.max_num_seqs
        self._drafter = load_drafter(context, model, self._limits_of(1).max_model_len)
        self._stores = self._pipeline is None or self._pipeline.last
        drafted = self._drafter.weight_bytes if self._stores and isinstance(self._drafter, PagedDrafter) else 0
        self._weights = module_bytes(model) + drafted
        self._runner: Runner | None = None
        self.set_rows(1 if self.chosen_rows is None else self.chosen_rows)

    @property
    def rows(self) -> int:
        return self._limits.rows

    def set_rows(self, rows: int) -> None:
        self._runner = None  # free the old one's memory first: both may not fit
        self._limits = self._limits_of(rows)
        self._check_blocks()
        count = AllocationCount(self._context.device.torch_device)
        with count, self._memory_errors(_BUFFERS, *_ROWS):
            self._runner = self._new_runner()
            worker = self._new_worker(self._runner, 0)
        lengths = captured_lengths(self._options.graph_chunk_sizes, self._limits.max_num_batched_tokens)
        self._chunk_sizes = lengths if self._runner.captures_chunks else ()
        self._batch_sizes = captured_sizes(self._options.graph_batch_sizes, rows)
        layers = len(self._limits.hidden_layers)
        self.footprint = Footprint(
            weights=self._weights,
            fixed=count.live,
            page_bytes=block_bytes(
                self._model,
                self._limits.block_size,
                self._context.dtype,
                layers,
                stores=self._stores,
                drafts=drafter_cache(self._drafter) if self._stores else None,
            ),
            fewest_pages=self._limits.max_blocks,
            most_pages=rows * self._limits.max_blocks,
            chosen_pages=self._options.num_blocks,
            rows=rows,
            caches=self._options.prefix_cache,
        )
        worker.close()

    def count_row(self) -> RowCost:
        """Counted on the meta device, as the difference between two numbers of rows that are large enough for all buffers to grow
        in proportion."""
        few, many = (self._sketched_bytes(_COUNTED * count) for count in (1, 2))
        length, size = self._limits.max_model_len, self._limits.block_size
        typical = max(min(length, _TYPICAL_TOKENS), length // _TYPICAL_SHARE)
        pages = -(-typical // size)
        return RowCost(bytes=-(-(many - few) // _COUNTED), pages=pages)

    def _sketched_bytes(self, rows: int) -> int:
        device, limits = MetaDevice(), self._limits_of(rows)
        with AllocationCount(device.torch_device) as count:
            runner = self._new_runner(device, limits)
            worker = self._new_worker(runner, 0, limits)
            live: int = count.live
        worker.close()
        return live

    def _limits_of(self, rows: int) -> Limits:
        name, processors = self._context.stage.name, self._processors.on_device
        micro_batches = self._pipeline.size if self._pipeline is not None else 1
        return Limits.of(name, self._options, self._model.shape, processors, rows, micro_batches)

    def _check_blocks(self) -> None:
        """Raises ConfigError if at most `_HARDLY_ANY` blocks are given and no request of default length fits. More blocks are
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
        with self._memory_errors("the largest steps", *_ROWS):
            peak = self._context.device.measure_peak(self._run_largest_steps)
        self._runner = None  # free the old one's memory first: both may not fit
        with self._memory_errors(_BUFFERS, *_ROWS):
            self._runner = self._new_runner()
        return peak

    def start(self, pages: int) -> ArWorker | FollowerWorker:
        runner = self._present_runner
        with self._memory_errors(f"{pages} KV blocks", "num_blocks", "max_num_seqs", "max_model_len"):
            runner.allocate(pages)
        if self._context.graphs:
            with self._memory_errors("the captured steps", "graph_batch_sizes", "graph_chunk_sizes"):
                self._capture_alike(runner)
        ranks = self._context.ranks
        if ranks is not None and not ranks.rank:
            runner.lead(ranks.channel)
        with self._memory_errors(_BUFFERS, *_ROWS):
            return self._new_worker(runner, pages)

    def warm_up(self) -> None:
        runner = self._present_runner
        runner.allocate(self._limits.max_blocks)
        run_largest_steps(runner, self._model.shape, self._limits)
        if self._context.graphs:
            runner.capture_chunks(self._chunk_sizes)
            runner.capture(self._batch_sizes)

    def time_decodes(self) -> list[int]:
        """Nanoseconds of decode steps of all rows, of typical length. The stage cannot be started afterwards."""
        if self.chosen_rows is None:
            self.set_rows(_TIMED_ROWS)
        runner = self._present_runner
        runner.allocate(self._limits.max_blocks)
        if self._context.graphs:
            runner.capture(self._batch_sizes[:1])
        return time_decodes(runner, self._model.shape, self._limits, _TYPICAL_TOKENS)

    @property
    def _present_runner(self) -> Runner:
        assert self._runner is not None
        return self._runner

    def _capture_alike(self, runner: Runner) -> None:
        """With collectives in the steps, one whose capture fails at one rank stays uncaptured at all. Without, a rank captures it
        alone, as a whole stage does."""
        ranks, device = self._context.ranks, self._context.device
        if ranks is None:
            self._capture(runner)
            return
        try:
            if ranks.tensor is None:
                self._capture(runner)
                return
            with device.shared_captures() as captures:
                self._capture(runner)
        except BaseException as error:
            error.add_note(f"at rank {ranks.rank} of {ranks.size}")
            raise
        for rank, text in enumerate(ranks.all_gather_text("failed captures", "\n".join(captures.failed))):
            failed = text.splitlines()
            captures.drop(failed)
            if failed and rank != ranks.rank:
                _log.warning("captures failed at rank %d of %d: %s", rank, ranks.size, ", ".join(failed))

    def _capture(self, runner: Runner) -> None:
        name, chunks = self._context.stage.name, self._chunk_sizes
        if not runner.captures_chunks:
            backend, own = f"attention_backend {self._options.attention_backend!r}", "the attention of this model"
            cause = backend if self._model.shape.captures_prefills else own
            _log.warning("%s: steps with prompts run uncaptured, as always with %s", name, cause)
        sizes = capture_progress(name, (*chunks, *self._batch_sizes))
        runner.capture_chunks(islice(sizes, len(chunks)))
        runner.capture(sizes)

    def _run_largest_steps(self) -> None:
        runner = self._present_runner
        run_largest_steps(runner, self._model.shape, self._limits)
        if self._context.graphs:
            # The smaller captures fit into the memory of the largest.
            runner.capture_chunks(self._chunk_sizes[:1])
            runner.capture(self._batch_sizes[:1])

    def _new_runner(self, device: Device | None = None, limits: Limits | None = None) -> Runner:
        """device, limits: the stage's own by default."""
        context = self._context
        device, limits = device or context.device, limits or self._limits
        name, dtype = context.stage.name, context.dtype
        chosen, size = self._options.attention_backend, self._limits.block_size
        backend = select_backend(name, chosen, device, shape=self._model.shape, dtype=dtype, block_size=size)
        processors = self._processors.on_device
        runner = Runner(
            name,
            device,
            model=self._model,
            backend=backend,
            limits=limits,
            dtype=dtype,
            priority=context.stage.priority,
            processors=processors,
            ranks=context.ranks,
            drafter=self._drafter,
            drafter_backend=select_backend(name, "auto", device, shape=self._model.shape, dtype=dtype, block_size=size),
            listeners=context.listeners,
        )
        runner.allocate(0)
        return runner

    def _memory_errors(self, what: str, *options: str) -> AbstractContextManager[None]:
        return memory_errors(self._context.stage.name, what, self._context.device, options)

    def _new_worker(self, runner: Runner, pages: int, limits: Limits | None = None) -> ArWorker | FollowerWorker:
        shape, name, ranks = self._model.shape, self._context.stage.name, self._context.ranks
        if ranks is not None and ranks.rank:
            return FollowerWorker(name, runner, ranks)
        return ArWorker(
            name,
            runner,
            shape=shape,
            limits=limits or self._limits,
            options=self._options,
            num_blocks=pages,
            processors=self._processors,
            listeners=self._context.listeners,
            watch=StepWatch(ranks, runner.device.seconds) if ranks is not None else None,
            drafter=self._drafter,
        )
