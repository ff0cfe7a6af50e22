"""The runner: `execute_model` launches a step up to the hidden states, `sample_tokens` launches the rest."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from omni.device import Device, Event, Upload, Uploader
from omni.parallel import RankChannel, Ranks
from omni.stage import Listeners
from omni_ar.attention import AttentionBackend
from omni_ar.drafters import Drafter
from omni_ar.model import ArModel, CodecModel
from omni_ar.processors import NamedProcessor
from omni_ar.run.captured_decodes import CapturedDecodes
from omni_ar.run.codes import CodePrediction
from omni_ar.run.draft_policy import DraftPolicy
from omni_ar.run.drafting import Drafting
from omni_ar.run.forward import CapturedChunks, ChunkStep, Forward, ForwardLaunches
from omni_ar.run.late_drafts import LateDrafts
from omni_ar.run.launch import ForgetMessage, StepLaunch, StepMessage, encode
from omni_ar.run.limits import Limits, step_fields
from omni_ar.run.micro_batch_inputs import MicroBatchInputs
from omni_ar.run.pack import LeadingInputs, PackedStep, captured_spans
from omni_ar.run.pack_chunks import NO_TENSORS, PackedChunks, StepTensors, step_tensors
from omni_ar.run.packer import StepPacker, step_requests
from omni_ar.run.phases import extend_tables, fill_draft_costs, set_null_rows, spread_rows, start_drafts, start_rows
from omni_ar.run.pipeline import HiddenTransfers, PendingTokens, TokenSender, token_source
from omni_ar.run.plan import StepPlan
from omni_ar.run.scores import Scorer
from omni_ar.run.source import TokenSource
from omni_ar.run.state import Pages, Resources, allocate_rows, allocate_step_buffers, drafter_cache, feature_layers
from omni_ar.run.step import (
    NO_REQUESTS,
    PayloadHandoff,
    PromptScores,
    SampledStep,
    ScoreHandoff,
    StepContext,
    StepRequests,
    TokenHandoff,
    WrittenPages,
)
from omni_ar.run.transfers import InputTransfers, StepTransfers

SourceFactory = Callable[[Resources], TokenSource]


class Runner:
    """Owns the device memory of the stage and launches its steps. The scheduler decides which steps run."""

    def __init__(
        self,
        name: str,
        device: Device,
        *,
        model: ArModel,
        backend: AttentionBackend,
        limits: Limits,
        dtype: torch.dtype,
        priority: int,
        processors: Sequence[NamedProcessor] = (),
        source: SourceFactory | None = None,
        ranks: Ranks | None = None,
        drafter: Drafter | None = None,
        drafter_backend: AttentionBackend | None = None,
        listeners: Listeners | None = None,
    ) -> None:
        """processors: the processors that a row may use. source: makes the token source; None for the one of this rank.
        ranks: of a stage that is cut across engines. drafter: None if `limits` allow no drafts; without the last layer range
        it does not run. drafter_backend: for its own keys and values; by default `backend`. listeners: as in `StageContext`."""
        self.device = device
        self.stream = device.stream(name, priority=priority)
        self._model = model
        self._limits = limits
        self.dtype = dtype
        self.draft_policy = DraftPolicy.of(limits, model, drafter)
        costs = self.draft_policy.costs(limits.rows) if limits.drafts else None
        self._state = allocate_rows(device, model, limits, dtype, processors, drafter, drafts_cost=costs is not None)
        if costs is not None:
            assert self._state.drafts is not None
            device.launch(self.stream, fill_draft_costs, self._state.drafts.costs, costs)
        self.conditioning = self._state.conditioning  # `ConditioningStore` fills it on the stage's stream
        self._buffers = allocate_step_buffers(device, model, limits, dtype)
        stage = Resources(
            name=name,
            device=device,
            stream=self.stream,
            model=model,
            limits=limits,
            dtype=dtype,
            rows=self._state,
            buffers=self._buffers,
            priority=priority,
            drafter=drafter,
        )
        self._codes = CodePrediction(stage, model, listeners) if isinstance(model, CodecModel) else None
        pipeline = ranks.pipeline if ranks is not None else None
        hidden = HiddenTransfers(stage, pipeline, feature_layers(drafter)) if pipeline is not None else None
        own, sender = token_source(stage, processors, pipeline)
        self._transfers = StepTransfers(InputTransfers(stage, ranks), hidden, sender) if ranks is not None else None
        self._followers: RankChannel | None = None
        self._drafter = drafter if pipeline is None or pipeline.last else None
        drafting = None
        if self._drafter is not None:
            drafting = Drafting(stage, self._drafter, drafter_backend or backend)
        self._late_drafts = None
        if limits.drafts_late and drafting is not None and isinstance(sender, TokenSender):
            self._late_drafts = LateDrafts(stage, drafting, sender)
        self._forward = Forward(stage, backend, hidden.boundary if hidden is not None else None, drafting)
        self._captured_decodes = CapturedDecodes(stage, self._forward)
        self._captured_chunks = CapturedChunks(stage, self._forward)
        self.captures_chunks = backend.captures_prefills and model.shape.captures_prefills
        """Whether the attention backend and the model support capture of steps with prompts."""
        self._pages: Pages | None = None
        # One more than steps in flight: a step that fails half-way may leave a copy in flight.
        self._uploader = Uploader(device, self.stream, limits.upload_size, limits.ring + 1)
        self.source: TokenSource = own if source is None else source(stage)
        self._scorer = Scorer(stage)
        self._batch_inputs = MicroBatchInputs(device, self.stream, self._uploader, limits)
        self._packer = StepPacker(self._uploader, model.shape, limits, processors, self.draft_policy, drafter)
        self._sent: int | None = None
        """The newest step that the other ranks were sent."""

    def lead(self, followers: RankChannel) -> None:
        """From now on, sends every step to the other ranks. Called after the steps that measure memory."""
        self._followers = followers

    def allocate(self, num_blocks: int) -> None:
        """Allocates KV and payload pages, plus the null block; replaces earlier ones."""
        self._pages = None  # free the old pages before allocating new ones
        self._captured_decodes.clear()  # their graphs refer to the old pages
        self._captured_chunks.clear()
        if self._codes is not None:
            self._codes.clear()
        if self._late_drafts is not None:
            self._late_drafts.clear()
        size, layers = self._limits.block_size, len(self._limits.hidden_layers)
        self._pages = Pages.allocate(
            self.device,
            self._model,
            num_blocks=num_blocks,
            block_size=size,
            dtype=self.dtype,
            layers=layers,
            stores=self.has_last_layers,
            drafts=drafter_cache(self._drafter),
        )

    def spread_rows(self, length: int) -> None:
        """Fills all rows with random tokens and contexts of `length` tokens, for timed steps: equal rows would choose the same
        experts, so that a step would read few of them. Needs allocated blocks."""
        self.device.launch(self.stream, spread_rows, self._state, self.pages.kv, self._model.shape.vocab_size, length)
        if self._transfers is not None:
            self._transfers.spread_hidden()

    def capture(self, sizes: Iterable[int]) -> None:
        """Captures decode steps of these numbers of rows, on the current pages; steps of up to as many rows then replay
        them. At start, before there are requests. sizes: preferably the largest first."""
        fields, launch = step_fields(self._model.shape), self.device.launch
        for size in sizes:
            inputs = LeadingInputs(*map(self._uploader.view, captured_spans(size, fields)))
            launch(self.stream, set_null_rows, inputs.rows, self._limits.null_row, inputs.advance, inputs.steps)
            for positions in self._limits.step_sizes:
                self._captured_decodes.capture(inputs, positions - 1, self.pages)
                self.source.capture(inputs.rows, inputs.advance, positions - 1)
            if self._late_drafts is not None:
                self._late_drafts.capture(inputs.rows, self.pages.drafts)
            if self._codes is not None and self._code_pages is not None:
                self._codes.capture(inputs.rows, self._code_pages)

    def capture_chunks(self, sizes: Iterable[int]) -> None:
        """Captures the forward of steps with prompts, for these numbers of tokens in chunks. As `capture`, and before
        it, since these take the most memory. Only where that is supported (`captures_chunks`)."""
        for size in sizes:
            self._captured_chunks.capture(size, self.pages)

    @property
    def pages(self) -> Pages:
        """Raises RuntimeError before `allocate`."""
        if self._pages is None:
            raise RuntimeError("the stage's pages are not allocated yet")
        return self._pages

    @property
    def model(self) -> ArModel:
        """The model that its steps run."""
        return self._model

    @property
    def has_last_layers(self) -> bool:
        """Whether this rank has the last layer range, and samples."""
        return self._forward.last

    @property
    def _code_pages(self) -> Tensor | None:
        """None where no codes are predicted."""
        return self.pages.codes if self.has_last_layers else None

    @property
    def ready(self) -> bool:
        """Whether a step can be launched now without a host slot that is still in use."""
        return self._uploader.ready and self.source.ready

    @property
    def awaited(self) -> PendingTokens | None:
        """See `StepTransfers.awaited`."""
        return self._transfers.awaited if self._transfers is not None else None

    @property
    def can_score(self) -> bool:
        return self._scorer.downloads.ready

    def forget_batch(self, step: int) -> None:
        """Drops the state of a step that failed half-way, so that the next one reuses nothing of it. At rank 0, the other ranks do
        the same."""
        if self._followers is not None and self._sent == step:
            self._followers.send(encode(ForgetMessage(step)))  # first: they finish its transfers then
        if self._transfers is not None:
            self._transfers.finish()
        self._packer.forget()
        self.source.forget()
        self._scorer.downloads.forget()

    def execute_model(self, plan: StepPlan) -> StepContext:
        """Launches a step up to its hidden states. The other ranks, if there are any, are sent the step first."""
        newest_input = plan.newest_input if self._limits.micro_batches > 1 else 0
        self._begin(newest_input)
        sampled = len(plan.sampled)
        captured = self._captured_chunks.find(plan) if plan.chunks else None
        launch, upload = self._packer.pack(
            plan,
            newest_input=newest_input,
            padded_rows=self._captured_decodes.padded_rows(plan.drafts, sampled) if sampled else None,
            captured=captured.shape if captured is not None else None,
        )
        tensors = step_tensors(plan) if plan.chunks else NO_TENSORS
        if self._followers is not None:
            uploaded = upload.content() if upload is not None else None
            self._followers.send(encode(StepMessage.of(launch, uploaded, tensors)))
            self._sent = plan.number
        return self._launch(launch, upload, tensors, step_requests(plan, self._model.shape.emits_tokens))

    def follow(self, message: StepMessage) -> SampledStep:
        """Launches a step of rank 0 at another rank. If it fails, `forget_batch` follows, unless the ranks differ."""
        launch, upload = message.launch, None
        self._begin(launch.newest_input)
        if message.uploaded is not None:
            upload = self._uploader.begin()
            upload.add(np.frombuffer(message.uploaded, np.int64))
        return self.sample_tokens(self._launch(launch, upload, message.empty_tensors(self.device, self.stream)))

    def _begin(self, newest_input: int) -> None:
        self.source.begin(newest_input)
        self._scorer.downloads.begin()

    def _launch(
        self,
        step: StepLaunch,
        upload: Upload | None,
        tensors: StepTensors,
        requests: StepRequests = NO_REQUESTS,
    ) -> StepContext:
        """upload: the step's inputs; None if they are on the device already."""
        transfers = self._transfers
        if transfers is not None:
            transfers.begin(step, tensors, self._step_vectors(step.packed))
        self._batch_inputs.launch(upload, step)
        packed, view = step.packed, self._uploader.view
        self._launch_new_rows(packed)
        scores = self._scorer.prompt_scores(step, view) if self.has_last_layers else None
        if transfers is not None:
            transfers.share_inputs()
        if packed.chunks is not None:
            self._launch_chunks(step, packed.chunks, tensors, scores)
        else:
            self._launch_decodes(step)
        if transfers is not None:
            transfers.send_hidden()
        return StepContext(
            launch=step,
            requests=requests,
            rows_R=view(packed.rows),
            advance_R=view(packed.advance),
            hidden_RD=self._buffers.hidden[: step.positions],
            edits=packed.edits.on_device(view) if packed.edits is not None else None,
            prompt_scores=scores,
        )

    def _launch_new_rows(self, packed: PackedStep) -> None:
        """Launches the setup of rows that start with the step, and adds new blocks to others."""
        view, launch = self._uploader.view, self.device.launch
        if packed.starts is not None:
            starts = packed.starts
            rows_n, fields_nC, table_nM = view(starts.rows), view(starts.fields), view(starts.table)
            sampling = starts.sampling.on_device(view)
            launch(self.stream, start_rows, self._state, rows_n, fields_nC, table_nM, sampling)
            if starts.drafts is not None:
                text = view(starts.drafts.text)
                launch(self.stream, start_drafts, self._state.drafts, rows_n, view(starts.drafts.fields), text)
        if packed.new_blocks is not None:
            launch(self.stream, extend_tables, self._state.block_table, view(packed.new_blocks))

    def _launch_chunks(
        self, step: StepLaunch, chunks: PackedChunks, tensors: StepTensors, scores: PromptScores | None
    ) -> None:
        assert step.shape is not None
        chunk_step = ChunkStep(
            chunks=chunks,
            steps=step.packed.steps,
            shape=step.shape,
            blocks=step.decode_blocks,
            view=self._uploader.view,
            tensors=tensors,
            scores=scores,
        )
        if step.captured:
            self._captured_chunks.launch(chunk_step, self.pages, self._receive_hidden)
        else:
            self._enqueue_forward(self._forward.chunks(chunk_step, self.pages))

    def _launch_decodes(self, step: StepLaunch) -> None:
        decode = self._captured_decodes.find(step)
        if decode is not None:
            self._receive_hidden()
            self.device.replay(self.stream, decode)
        else:
            rows_R, steps_XR = self._uploader.view(step.packed.rows), self._uploader.view(step.packed.steps)
            decodes = self._forward.decodes(rows_R, steps_XR, step.decode_blocks, self.pages, step.drafts)
            self._enqueue_forward(decodes)

    def _enqueue_forward(self, launches: ForwardLaunches) -> None:
        """The receive of hidden states follows the inputs: these do not need them, and if they fail, they fail at every rank."""
        self.device.enqueue(self.stream, launches.inputs)
        self._receive_hidden()
        self.device.enqueue(self.stream, launches.forward)

    def _receive_hidden(self) -> None:
        if self._transfers is not None:
            self._transfers.receive_hidden()

    def sample_tokens(self, context: StepContext) -> SampledStep:
        """Launches logits and sampling, hands the tokens over, then launches the work after the handoff."""
        tokens, count = None, context.launch.count
        if count and self._codes is not None and self._codes.precedes_tokens:
            tokens = self.source.sample(context, self._predict_codes)
        elif count:
            tokens = self.source.sample(context)
            self._predict_codes(context)
        drafted = self._late_drafts is not None and self._late_drafts.launch(context, self.pages.drafts)
        hidden = None
        if tokens is not None and context.requests.emits and self.pages.hidden is not None:
            # The forward wrote them before the tokens existed, so they need no event of their own.
            hidden = WrittenPages(self.pages.hidden, tokens.made)
        if self._transfers is not None:
            self._transfers.pass_tokens(context.rows_R)
        scores = self._scorer.score(context) if self.has_last_layers else None
        end = self._end(tokens if not drafted else None, scores)
        codes = None
        if count and self._codes is not None and self._code_pages is not None:
            codes = WrittenPages(self._code_pages, self._codes.written(end))
        return SampledStep(context.launch, context.requests, tokens, PayloadHandoff(hidden, codes), scores, end)

    def _end(self, tokens: TokenHandoff | None, scores: ScoreHandoff | None) -> Event:
        """The end of the step. Reuses an event if possible: recording one is a considerable part of a step's host time.

        tokens: None if work of the main stream follows their handoff."""
        if scores is not None:
            return scores.made
        if tokens is not None and self.pages.codes is None:
            return tokens.made
        return self.device.record(self.stream)

    def _predict_codes(self, context: StepContext) -> None:
        if self._codes is not None and self._code_pages is not None:
            self._codes.launch(context, self._code_pages)

    def _step_vectors(self, packed: PackedStep) -> list[Tensor]:
        """Indexes of the vectors that condition the steps whose inputs the batch embeds."""
        if not self._model.shape.step_width:
            return []
        steps = [packed.steps, *([packed.chunks.steps] if packed.chunks is not None else [])]
        return [self._uploader.view(span)[-1] for span in steps if span.shape[1]]
