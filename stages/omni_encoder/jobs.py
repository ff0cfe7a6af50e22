"""Media items that wait for encoding, and their batches."""

from omni.stage import together
from omni_encoder.cache import ContentKey
from omni_encoder.options import EncoderOptions
from omni_encoder.request import EncoderRequest, Job, Taker


class JobQueue:
    """Jobs by content, served by rank, then in order of arrival, and kept until their outputs are complete."""

    def __init__(self, options: EncoderOptions) -> None:
        self._options = options
        self._jobs: dict[ContentKey, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def join(self, key: ContentKey, taker: Taker) -> bool:
        """Adds the taker to the job with this content. Returns whether there is one."""
        job = self._jobs.get(key)
        if job is not None:
            job.takers.append(taker)
        return job is not None

    def add(self, job: Job) -> None:
        """Adds a job with new content, and takes ownership of its input's lease."""
        self._jobs[job.key] = job

    def leave(self, request: EncoderRequest) -> None:
        """Removes the request from every job. A job without requests is removed, unless it is on the device."""
        for key, job in list(self._jobs.items()):
            job.takers = [taker for taker in job.takers if taker.request is not request]
            if not job.takers and not job.launched:
                del self._jobs[key]
                job.feed.release(job.after)

    def next_batch(self, up_to: tuple[int, int] | None = None) -> list[Job]:
        """The first job whose features are ready, and others that may share its batch. Empty if there is none.

        up_to: highest rank of the jobs.
        """
        batch: list[Job] = []
        length = 0
        waiting = [job for job in self._jobs.values() if not (job.launched or job.paused) and job.feed.arrived]
        if up_to is not None:
            waiting = [job for job in waiting if job.rank <= up_to]
        for job in together(sorted(waiting, key=lambda job: job.rank)):
            if not batch or self._fits(job, batch[0], length):
                batch.append(job)
                length += job.item.length
            if len(batch) == self._options.max_batch_items:
                break
        return batch

    def remove(self, job: Job) -> None:
        """Removes a finished job."""
        del self._jobs[job.key]

    def _fits(self, job: Job, first: Job, length: int) -> bool:
        return job.item.batch_key == first.item.batch_key and length + job.item.length <= self._options.max_batch_length
