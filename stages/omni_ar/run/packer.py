"""Turns plans into steps that can be launched."""

from collections.abc import Sequence
from dataclasses import dataclass

from omni.device import Upload, Uploader
from omni_ar.drafters import Drafter
from omni_ar.kernels.sampling.state import SamplingFlags
from omni_ar.model import ArShape
from omni_ar.processors import NamedProcessor
from omni_ar.run.draft_policy import DraftPolicy
from omni_ar.run.launch import StepLaunch
from omni_ar.run.limits import Limits
from omni_ar.run.pack import PackedStep, pack_step
from omni_ar.run.pack_chunks import scored_positions
from omni_ar.run.plan import BatchShape, StepPlan
from omni_ar.run.request import ArRequest, Row
from omni_ar.run.step import ScoredChunk, StepRequests, snapshot
from omni_ar.sampling.pack import merge_flags


@dataclass(frozen=True, slots=True)
class _UploadedBatch:
    """A batch of decode rows on the device: while it is unchanged, a step uploads nothing. area: as in `StepLaunch`; None if there
    are no micro-batches."""

    rows: tuple[Row | None, ...]
    packed: PackedStep
    flags: SamplingFlags
    area: int | None


class StepPacker:
    """Packs the inputs of each step for the upload, unless they are on the device."""

    def __init__(
        self,
        uploader: Uploader,
        shape: ArShape,
        limits: Limits,
        processors: Sequence[NamedProcessor],
        policy: DraftPolicy,
        drafter: Drafter | None = None,
    ) -> None:
        self._uploader = uploader
        self._shape = shape
        self._limits = limits
        self._processors = processors
        self._drafter = drafter
        self._policy = policy
        self._drafts_late = drafter is not None and limits.drafts_late
        self._uploaded: _UploadedBatch | None = None
        """The batch whose inputs are in the upload buffer."""
        self._kept: list[_UploadedBatch] = []
        """The batches in the areas of `MicroBatchInputs`, the least recently used first."""

    def pack(
        self, plan: StepPlan, *, newest_input: int, padded_rows: int | None, captured: BatchShape | None
    ) -> tuple[StepLaunch, Upload | None]:
        """Returns the step and its inputs, to be uploaded; None if they are on the device already. newest_input, padded_rows:
        as in `StepLaunch`. captured: the shape of the captured forward that a step with chunks is padded to, None if it runs
        uncaptured."""
        batch_shape = (captured or plan.shape) if plan.chunks else None
        sampled = plan.sampled
        packed, flags, area, upload = self._packed(plan, sampled, padded_rows, batch_shape)
        asked = [each.sampling.logprobs for each in sampled if each.sampling.logprobs is not None]
        scored = [chunk.request.sampling.prompt_logprobs or 0 for chunk in plan.chunks]
        launch = StepLaunch(
            number=plan.number,
            newest_input=newest_input,
            packed=packed,
            flags=flags,
            padded_rows=padded_rows,
            decode_blocks=self._decode_blocks(plan) if plan.decodes else 0,
            shape=batch_shape,
            captured=captured is not None,
            logprobs=max(asked, default=None),
            prompt_logprobs=max(scored, default=0),
            area=area,
            drafts=plan.drafts,
            draft_blocks=self._draft_blocks(plan) if self._drafts_late else 0,
        )
        return launch, upload

    def forget(self) -> None:
        """Called after a failed step, so that the next step uploads its inputs."""
        self._uploaded = None
        self._kept.clear()

    def _decode_blocks(self, plan: StepPlan) -> int:
        """Maximum number of blocks in use of the decode rows' tables."""
        longest = max(request.num_computed_tokens for request in plan.decodes) + 1 + plan.drafts
        return self._blocks(longest)

    def _draft_blocks(self, plan: StepPlan) -> int:
        """Returns `StepLaunch.draft_blocks`."""
        limits, ends = self._limits, [chunk for chunk in plan.chunks if chunk.last]
        if self._policy.has_weights and not plan.runs_drafter(drafts_late=True):
            return 0
        lengths = [request.num_computed_tokens + 1 + plan.drafts for request in plan.decodes]
        lengths += [chunk.start + chunk.length for chunk in ends]
        return self._blocks(max(lengths) + limits.drafts) if lengths else 0

    def _blocks(self, tokens: int) -> int:
        return min(-(-tokens // self._limits.block_size), self._limits.max_blocks)

    def _packed(
        self, plan: StepPlan, sampled: Sequence[ArRequest], padded_rows: int | None, batch_shape: BatchShape | None
    ) -> tuple[PackedStep, SamplingFlags, int | None, Upload | None]:
        """Returns the packed step, its sampling work, its area in `MicroBatchInputs`, and its upload."""
        rows = tuple(request.row for request in sampled)
        edited = any(request.edit is not None for request in sampled)
        changed = bool(plan.chunks or plan.new_blocks or edited or self._shape.conditioned)
        if not changed:
            batch = self._uploaded
            if batch is not None and batch.rows == rows:
                return batch.packed, batch.flags, None, None
            if (batch := self._take_kept(rows)) is not None:
                self._keep(batch)
                return batch.packed, batch.flags, batch.area, None
        self._uploaded = None
        upload = self._uploader.begin()
        try:
            packed = pack_step(
                upload,
                plan,
                limits=self._limits,
                shape=self._shape,
                processors=self._processors,
                padded_rows=padded_rows,
                batch_shape=batch_shape,
                drafter=self._drafter,
                draft_rate=self._policy.start_rate,
            )
        except Exception:
            self._uploader.cancel(upload)
            raise
        flags = merge_flags(request.flags for request in sampled)
        area = None
        if not plan.chunks and not self._shape.conditioned:
            area = self._free_area(rows)
            self._keep(_UploadedBatch(rows, packed.repeated(), flags, area))
        return packed, flags, area, upload

    def _take_kept(self, rows: tuple[Row | None, ...]) -> _UploadedBatch | None:
        kept = next((each for each in self._kept if each.rows == rows), None)
        if kept is not None:
            self._kept.remove(kept)
        return kept

    def _free_area(self, rows: tuple[Row | None, ...]) -> int | None:
        """Returns an area for the batch: its present area, a free one, or the least recently used one."""
        areas = self._limits.micro_batches
        if areas == 1:
            return None
        if (kept := self._take_kept(rows)) is not None:
            return kept.area
        if len(self._kept) < areas:
            return min(set(range(areas)) - {each.area for each in self._kept})
        return self._kept.pop(0).area

    def _keep(self, batch: _UploadedBatch) -> None:
        self._uploaded = batch
        if batch.area is not None:
            self._kept.append(batch)


def step_requests(plan: StepPlan, emits_tokens: bool) -> StepRequests:
    """emits_tokens: `ArShape.emits_tokens`."""
    rows = tuple(map(snapshot, plan.sampled))
    emits = any(one.emits_hidden for one in rows) or (bool(rows) and emits_tokens)
    return StepRequests(rows, _scored_chunks(plan), emits)


def _scored_chunks(plan: StepPlan) -> tuple[ScoredChunk, ...]:
    """The prompt tokens that a step scores."""
    chunks: list[ScoredChunk] = []
    start = 0
    for chunk in plan.chunks:
        positions = scored_positions(chunk)
        if positions.size:
            chunks.append(ScoredChunk(chunk.request, int(positions[0]) + 1, start, positions.size))
            start += positions.size
    return tuple(chunks)
