"""The stage worker: handles messages, and advances scheduler, runner and output processor. It never blocks."""

import itertools
import time
from collections.abc import Callable, Mapping
from typing import TypeVar
from weakref import proxy

import numpy as np

from omni.device import COMPLETED
from omni.errors import InputError, LostRankError, StageError, exception_of
from omni.parallel.watch import StepWatch
from omni.payload import PageSlice, Payload, RequestHiddenStates
from omni.sampling import LogitsEdit, SamplingParams
from omni.stage import Failed, Feed, Listeners, MailboxWorker, Open, Produced, StageUsage
from omni.utils.draft_counts import DraftCounts
from omni_ar.drafters import Drafter, PagedDrafter
from omni_ar.inputs import MultimodalEmbedding, Prompt, StepInputs
from omni_ar.model import ArShape
from omni_ar.options import ArOptions
from omni_ar.processors import ProcessorRegistry
from omni_ar.run.allocator import Allocator, RowTable
from omni_ar.run.blocks.pool import BlockPool, BlockTable
from omni_ar.run.blocks.reclaim import Reclaimer, Spiller
from omni_ar.run.counters import LaunchCounts, request_counts
from omni_ar.run.host_processors import HostProcessorExecutor
from omni_ar.run.limits import Limits
from omni_ar.run.output_processor import OutputProcessor
from omni_ar.run.plan import StepPlan
from omni_ar.run.request import ArRequest, RequestStatus
from omni_ar.run.runner import Runner
from omni_ar.run.sampling_rules import SamplingRules
from omni_ar.run.scheduler import Scheduler
from omni_ar.run.stores import ConditioningStore, EmbeddingStore

_FRAMES_INTERVAL = 5
"""Default of `ArOptions.stream_interval` for a codec model: chunks of a vocoder have 10 or 25 frames, after the first."""

T = TypeVar("T")


class ArWorker(MailboxWorker[ArRequest]):
    """Runs the requests of one autoregressive stage in continuous batches."""

    def __init__(
        self,
        name: str,
        runner: Runner,
        *,
        shape: ArShape,
        limits: Limits,
        options: ArOptions,
        num_blocks: int,
        processors: ProcessorRegistry | None = None,
        listeners: Listeners | None = None,
        watch: StepWatch | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """num_blocks: of the runner's allocation, without the null block. processors: None if there are none. listeners: as in
        `StageContext`. watch: None if the stage is not cut. drafter: the runner's."""
        super().__init__(name)
        self.phase_model = runner.model
        self._runner = runner
        self._shape = shape
        self._limits = limits
        self._drafter = drafter
        self._processors = processors or ProcessorRegistry({}, shape.vocab_size)
        self._sampling = SamplingRules(
            name,
            options.sampling,
            vocab_size=shape.vocab_size,
            processors=self._processors,
            gives_logits=runner.source.gives_logits,
            own_prompts=len(shape.prompt_columns) <= 1,
            predicts_codes=runner.pages.codes is not None,
        )
        self._opened = itertools.count()
        self._rows = RowTable(limits.rows)
        self._pool = BlockPool(num_blocks)
        self._spiller = Spiller(runner.device, runner.stream, limits.max_model_len)
        self._reclaimer = Reclaimer(self._pool, self._spiller)
        self._allocator = Allocator(
            self._rows,
            self._pool,
            self._reclaimer,
            self._spiller,
            limits=limits,
            code_pages=runner.pages.codes,
            prefix_cache=options.prefix_cache,
            conditioned=shape.conditioned,
            paged_drafts=runner.draft_policy.has_weights,
            looks_ahead=isinstance(drafter, PagedDrafter) and drafter.feature_shape is not None,
        )
        self._scheduler = Scheduler(
            self._allocator, limits, shape.conditioned, runner.draft_policy, listeners=listeners
        )
        self._conditioning = ConditioningStore(
            name, runner.device, runner.stream, conditioning=runner.conditioning, shape=shape, limits=limits
        )
        self._embeddings = EmbeddingStore(name, runner.device, runner.stream, limits.max_model_len, runner.dtype)
        worker = runner.device.host_worker(f"{name}-host-processors")
        self._host_processors = HostProcessorExecutor(worker, shape.vocab_size)
        self._output_processor = OutputProcessor(
            self._host_processors,
            self.outbox,
            proxy(self),  # device memory is freed with the worker, not when the collector finds a cycle
            drained=self._scheduler.unblock,
            block_size=limits.block_size,
            emits_tokens=shape.emits_tokens,
            logits=runner.model.logits,
            watch=watch,
            drafts=limits.drafts,
            interval=options.stream_interval or (_FRAMES_INTERVAL if runner.pages.codes is not None else 1),
        )
        self._launched = LaunchCounts()
        self._polled = False
        """Whether `poll` has done the first part of the next tick."""

    def usage(self) -> StageUsage:
        return {
            "requests": len(self.requests),
            "rows": self._rows.used,
            "blocks": self._pool.used,
            "embeddings": self._embeddings.waiting,
            "leases": self._conditioning.waiting,
            "steps": self._output_processor.steps_in_flight,
            "scores": self._output_processor.unread_scores,
            "host_processors": self._host_processors.waiting,
            "spilled": self._reclaimer.spilled,
        }

    def counters(self) -> Mapping[str, int]:
        """prompt_tokens: prompt tokens of requests at their first start. cached_tokens: those of them that were in the
        prefix cache. prefill_tokens: tokens run in chunks, recomputed ones included. decode_tokens: one for each row of
        each launched decode step, and those that drafts add to it, once they are read. discarded_tokens: tokens read after the
        end of their request, also of the step that ended it. retries: failed steps that were run again, request by request. Those
        of `DurationCounts`: host time of `sample_tokens`. Of a stage with a drafter also those of `DraftCounts`."""
        read = self._output_processor
        counts = read.drafts.numbers() | self._launched.numbers(read.further_tokens)
        return counts | {
            "prompt_tokens": self._allocator.prompt_tokens,
            "cached_tokens": self._allocator.cached_tokens,
            "discarded_tokens": read.discarded,
            "preemptions": self._allocator.preemptions,
            "spilled_rows": self._spiller.entries,
            "evicted_blocks": self._pool.evictions,
            "cached_blocks": self._pool.cached,
            "retries": self.retries,
        }

    def close(self) -> None:
        super().close()
        self._output_processor.clear()
        self._host_processors.close()
        self._reclaimer.clear()

    @property
    def longest_prompt(self) -> int:
        return self._limits.max_model_len - 1

    def check(self, sampling: SamplingParams, field: str) -> None:
        """Raises InputError for parameters that this stage does not support. In any thread."""
        self._sampling.check(sampling, field)

    def open(self, message: Open) -> ArRequest:
        sampling = self._sampling.resolve(message.sampling)
        request = ArRequest(
            message.request_id,
            sampling,
            set(message.inputs),
            order=(*message.order, next(self._opened)),
            cache_salt=message.cache_salt,
            sample_index=message.sample_index,
            params=self._processors.params(sampling.processors),
            stops=message.rules.stops,
            host_processors=(*message.rules.host_processors, *self._processors.host_processors(sampling.processors)),
            # One of several producers may not have begun. The request must not hold a row that another request, and thereby that
            # producer, needs for progress.
            needs_first_step=self._shape.step_width > 0 and len(message.inputs) > 1,
            wants_layers=message.hidden_states,
        )
        if request.host_processors:
            self._host_processors.submit(request)
        return request

    def pause(self, request: ArRequest) -> None:
        request.paused = True

    def resume(self, request: ArRequest) -> None:
        request.paused = False
        self._scheduler.unblock(request)

    def feed(self, request: ArRequest, message: Feed) -> None:
        meta = message.payload.meta
        if isinstance(meta, MultimodalEmbedding):
            self._embeddings.add(request, meta, message)
            return
        if isinstance(meta, StepInputs):
            self._conditioning.add(request, meta, message)
            self._queue(request)
            self._scheduler.unblock(request)
            return
        message.release(COMPLETED)  # a prompt has no tensors
        if not isinstance(meta, Prompt):
            raise StageError(self.name, "taking its input", f"a stage of kind 'ar' takes no {type(meta).__name__}")
        meta.check(len(self._shape.prompt_columns), self._shape.position_axes, self._shape.vocab_size)
        if request.prompt is not None:
            raise InputError("prompt", "was given twice", "feed a request one prompt")
        request.prompt = meta
        request.max_tokens = self._scheduler.checked_max_tokens(request, self.name)
        self._queue(request)

    def end(self, request: ArRequest, source: str) -> None:
        request.open_sources.discard(source)
        if request.open_sources:
            return
        if request.prompt is None:
            self.finish(request.id, "empty", request_counts(request))
        elif self._shape.conditioned and not request.knows_all_steps:
            raise StageError(self.name, "taking its input", "its inputs ended before the last step's conditioning")
        elif missing := self._embeddings.missing(request):
            raise StageError(self.name, "taking its input", f"its inputs ended before embedding {missing}")

    def drop(self, request: ArRequest) -> None:
        self._scheduler.move(request, RequestStatus.FINISHED)
        self._host_processors.cancel(request)
        self._output_processor.drop(request)
        self._embeddings.drop(request)
        self._conditioning.drop(request)
        for embedding in request.embeddings.values():
            embedding.release(request.last_step_end)
        request.embeddings.clear()
        if request.row is not None:
            self._rows.release(request.row)
        if request.table is not None:
            self._reclaimer.add_table(request.table)

    def poll(self) -> bool:
        """Reads completed steps, and copies inputs that have arrived."""
        moved = self.empty_inbox() | self._receive()
        self._polled = True
        return moved

    def advance(self) -> bool:
        moved = not self._polled and self._receive()
        self._polled = False
        if self._output_processor.steps_in_flight < self._limits.max_in_flight and self._runner.ready:
            plan = self._timed("plan", lambda: self._scheduler.plan(self._runner.can_score))
            if plan is not None:
                self._launch(plan)
                self._process_outputs()
                moved = True
            moved |= self._report_failures()
        return self._output_processor.emit_idle() or moved

    def _receive(self) -> bool:
        moved = self._reclaimer.tick() | self._take_embeddings()
        return moved | self._process_outputs() | self._poll_host_processors() | self._take_conditioning()

    def finish_request(self, request: ArRequest, reason: str, table: BlockTable | None = None) -> None:
        """The request has all its tokens. It keeps its resources until its log-probabilities are read. table: with its last
        token, if that is known: it may have been preempted since."""
        request.finish_reason = reason
        self._output_processor.emit_buffered(request)
        if request.wants_layers and request.outputs:
            request.wants_layers = False
            table = table if table is not None else request.table
            if table is None:
                doing, problem = "keeping hidden states", "the request was preempted before its text was known to end"
                self.fail_request(request, doing, StageError(self.name, doing, problem))
                return
            self._emit_layers(request, table)
        if request.unread_scores:
            self._scheduler.move(request, RequestStatus.WAITING_FOR_LOGPROBS)
        else:
            if self._drafter is not None and request.prompt is not None:
                try:
                    self._drafter.finished(request.for_drafter, request.outputs)
                except BaseException as error:
                    self.fail_request(request, "giving its outputs to the drafter", exception_of(error))
                    return
            withheld = tuple(one.token for one in request.withheld)
            self.finish(request.id, reason, request_counts(request), withheld)

    def report_drafts(self, step: int, counts: DraftCounts) -> None:
        device = self._runner.device
        if device.launch_observer is not None:
            device.host_did(self._runner.stream.name, "read_drafts", device.host_time(), step=step, **counts.numbers())

    def _emit_layers(self, request: ArRequest, table: BlockTable) -> None:
        """Emits the hidden states of every position that the stage has read. The steps that wrote them are complete, since
        the last token was sampled from them."""
        pages = self._runner.pages.layers
        assert pages is not None, "the pipeline is checked"
        positions = np.arange(request.length + len(request.outputs) - 1)
        hidden = {"hidden": PageSlice(pages, table.slots(positions, self._limits.block_size))}
        meta = RequestHiddenStates(layers=self._limits.hidden_layers, prompt_tokens=request.length)
        produced = Produced(request.id, Payload(meta, hidden), COMPLETED)
        table.add(produced)
        self.outbox.append(produced)

    def fail_request(self, request: ArRequest, doing: str, error: Exception) -> None:
        if request.status is not RequestStatus.FINISHED:
            self.fail(request.id, doing, error)

    def _take_embeddings(self) -> bool:
        taken, failed = self._embeddings.tick()
        for request, error in failed:
            self.fail_request(request, "gathering an embedding", error)
        for request in taken:
            try:
                self._queue(request)
            except Exception as error:
                self.fail_request(request, "taking its input", error)
        return bool(taken or failed)

    def _take_conditioning(self) -> bool:
        taken, failed = self._conditioning.tick()
        for request in taken:
            self._scheduler.unblock(request)
        for request, error in failed:
            self.fail_request(request, "gathering its conditioning", error)
        return bool(taken)  # includes the failed requests

    def _poll_host_processors(self) -> bool:
        results = self._host_processors.poll()
        for request, result in results:
            if isinstance(result, Exception):
                self.fail_request(request, "running its host processors", result)
            elif result is None:
                self._output_processor.emit_withheld(request)  # no stop string can be completed now
                self._end_constrained(request)
            else:
                request.edit = result
                self._scheduler.unblock(request)
        return bool(results)

    def _end_constrained(self, request: ArRequest) -> None:
        if self._shape.emits_tokens and request.outputs:
            request.finish_reason, request.edit = "stop", LogitsEdit()
            self._scheduler.unblock(request)
        else:
            self.finish_request(request, "stop")

    def _queue(self, request: ArRequest) -> None:
        if request.status is RequestStatus.WAITING_FOR_INPUTS and request.inputs_ready:
            request.check_embeddings(self.name)
            self._scheduler.add(request)

    def _timed(self, activity: str, work: Callable[[], T]) -> T:
        device = self._runner.device
        since = device.host_time()
        result = work()
        if result:
            device.host_did(self._runner.stream.name, activity, since)
        return result

    def _process_outputs(self) -> bool:
        return self._timed("process_outputs", self._output_processor.poll)

    def _launch(self, plan: StepPlan) -> None:
        device, stream = self._runner.device, self._runner.stream
        drafts = {"drafts": plan.drafts} if self._limits.drafts else {}
        try:
            with device.on(stream):
                numbers = {"decodes": len(plan.decodes), "prefill": plan.chunk_tokens, **drafts}
                with device.host_span(stream, "execute_model", step=plan.number, **numbers):
                    context = self._runner.execute_model(plan)
                with device.host_span(stream, "sample_tokens", step=plan.number):
                    since = time.perf_counter_ns()
                    step = self._runner.sample_tokens(context)
                    took = time.perf_counter_ns() - since
        except LostRankError:
            raise  # no further step can succeed: the error ends the engine
        except BaseException as error:
            self._isolate(plan, exception_of(error))
            return
        self._launched.add(len(plan.decodes), plan.chunk_tokens, took)
        self._scheduler.launched(plan)
        self._output_processor.launched(step, plan.requests)

    def _isolate(self, plan: StepPlan, error: Exception) -> None:
        """Handles a step that could not be launched: its only request fails; of several, each runs again alone."""
        self._runner.forget_batch(plan.number)
        # Work launched before the failure still runs, and reads memory that these requests hold.
        end = self._runner.device.record(self._runner.stream)
        for request in plan.requests:
            request.last_step_end = end
        if self.retry_each(plan.requests, "running a step", error):
            self._scheduler.retry(plan)
        else:
            self.fail(plan.requests[0].id, "running a step", error)

    def _report_failures(self) -> bool:
        """Fails the requests for which planning failed, or whose payload could not be moved out of blocks."""
        failures, self._allocator.failures = self._allocator.failures, []
        for request_id, doing, error in failures:
            if request_id in self.requests:
                self.fail(request_id, doing, error)
            else:  # finished here, but its consumers would wait forever for its payload
                self.outbox.append(Failed(request_id, self._known(doing, error)))
        return bool(failures)
