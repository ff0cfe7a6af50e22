"""A loaded model: the common part of `Omni` and `AsyncOmni`."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence

import omni.api.owner  # noqa: F401  # notices forks from now on
from omni.api.settings import layers_of
from omni.errors import OmniError, StageError
from omni.pipeline import FRONTEND, Pipeline
from omni.process.early import start_early

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from omni.api.client import Client
    from omni.api.load import Loaded
    from omni.engine import PipelineFunction, StageMemory, StartReport
    from omni.frontend.base import Frontend
    from omni.media import MediaOptions
    from omni.plugin.manager import Plugins
    from omni.stage import StageUsage


class Session:
    """A loaded model and its engine.

    model: a checkpoint folder or a hub id.
    device: `"cpu"`, `"cuda"` or `"cuda:N"`; None takes the first CUDA device if there is one.
    dtype: of weights and activations (`"float32"`, `"bfloat16"`, `"float16"` or torch's own); None takes float32 on the
    CPU, bfloat16 on CUDA.
    load_format: `"auto"` reads the checkpoint, `"dummy"` makes random weights; None takes `"auto"`.
    config: a TOML file of settings, a table for each stage and `[engine]`.
    overrides: settings by dotted path, such as `{"talker.max_num_seqs": 8, "engine.memory_bytes": 2**34}`. They override the
    file's, and `device`, `dtype` and `load_format` override both.
    plugins: of `omni.plugin.manager.load_plugins`; None loads the installed ones.
    place: the devices of stages that are not on `device`: `{"talker": "cuda:1"}`; `"cuda:1,cuda:2"` for a replica on each,
    `"cpu/2"` for a further process.
    timeline: a file for the timeline of the stages' launches, written at `close`. `omni timeline` reads it.
    family: the name of the model family, where several serve the checkpoint's model type.
    extensions: names of pipeline extensions of plugins, in the order in which they are applied.
    pipeline: a function that takes the family's `Pipeline`, with its extensions, and returns the one to run.
    check_frontend: called with the family's front end before the weights are waited for; an error that it raises is this one's.

    Raises ConfigError, CheckpointError or PluginError. The model stays in memory until `close`, or until this object
    and its output streams are garbage collected.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        load_format: str | None = None,
        config: str | os.PathLike[str] | None = None,
        overrides: Mapping[str, object] | None = None,
        plugins: Plugins | None = None,
        timeline: str | os.PathLike[str] | None = None,
        place: Mapping[str, str | Sequence[str]] | None = None,
        family: str | None = None,
        extensions: Sequence[str] = (),
        pipeline: PipelineFunction | None = None,
        check_frontend: Callable[[Frontend], object] = lambda frontend: None,
    ) -> None:
        layers = layers_of(
            config=config,
            overrides=overrides,
            device=device,
            dtype=dtype,
            load_format=load_format,
            timeline=timeline,
            place=place,
        )
        # The process would import the installed plugins; the given ones may serve the model differently.
        early = start_early(model, layers, family) if plugins is None else None
        loaded: Loaded | None = None
        client: Client | None = None
        try:
            # They import torch, which takes seconds, while the engine's process does.
            from omni.api.client import Client
            from omni.api.load import load
            from omni.engine import PipelineChoice

            choice = PipelineChoice(family=family, extensions=extensions, wrap=pipeline)
            loaded = load(model, layers, plugins, choice, early, check_frontend)
            client = Client(loaded)
            self._client = client
            # A weak reference: while it is open, a client is kept elsewhere, and afterwards nothing keeps its memory.
            finalizer = weakref.finalize(self, _close_soon, weakref.ref(client))
            # At the interpreter's end the client closes itself.
            finalizer.atexit = False
            client.start()
        except BaseException:
            # Also after Ctrl-C: the engine processes already run before `start`.
            if client is not None:
                client.abandon()
            elif loaded is not None:
                loaded.engine.close()
            elif early is not None:
                early.discard()
            raise

    @property
    def pipeline(self) -> Pipeline:
        """The model's graph with overrides applied: stage names for `sampling`, outputs for `modalities`."""
        return self._client.pipeline

    @property
    def voices(self) -> tuple[str, ...]:
        """Voices that a request can name, the default first; empty without a choice."""
        return self._client.frontend.voices

    @property
    def modalities(self) -> tuple[str, ...]:
        """Outputs of the checkpoint that are generated by default. `pipeline.outputs` lists the others too."""
        return self.pipeline.default_modalities

    @property
    def takes_raw_prompts(self) -> bool:
        """Whether requests may give `raw_prompt`."""
        return self._client.frontend.takes_raw_prompts

    @property
    def takes_names(self) -> bool:
        """Whether messages may have a `name`, as of models that distinguish speakers."""
        return self._client.frontend.takes_names

    @property
    def longest_prompt(self) -> int | None:
        """Tokens of the longest prompt that the main stage takes; None without a limit."""
        return self._client.longest_prompt

    @property
    def failure(self) -> OmniError | None:
        """Why the engine refuses every request until the model is opened again; None while it runs."""
        if self._client.owner.forked or self._client.closed:
            return StageError("engine", "taking a request", "it is closed")
        return self._client.engine.failure

    @property
    def interruption(self) -> OmniError | None:
        """Why requests wait: an engine's process has ended and is started again. None while all engines run."""
        return self._client.engine.interruption

    @property
    def media(self) -> MediaOptions:
        """Allowed sources and sizes of media."""
        return self._client.media

    def token_text(self, token: int) -> bytes | None:
        """The UTF-8 bytes that an id adds to the text, perhaps a part of a character; none for a control token. None if the
        vocabulary is unknown."""
        vocabulary = self._client.frontend.vocabulary()
        return vocabulary.written(token) if vocabulary is not None else None

    @property
    def memory(self) -> Mapping[str, StageMemory]:
        """Device memory of each stage, divided at the start."""
        return self._client.engine.memory

    @property
    def start_reports(self) -> Mapping[str, StartReport]:
        """The start report of each engine, by place: seconds of each part, and numbers of compiled kernels."""
        return self._client.engine.start_reports

    def usage(self) -> Mapping[str, StageUsage]:
        """Resources in use at each stage (requests, rows, blocks, ...), all zero when idle. `"frontend"` is for waiting requests:
        their number, and bytes of host memory."""
        client = self._client
        client.owner.check("asking for usage")
        waiting = {"requests": client.queue.waiting, "bytes": client.queue.held_bytes}
        return {**client.engine.usage(), FRONTEND: waiting}

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """Totals of each stage since the start, by name (tokens, frames, steps, ...)."""
        self._client.owner.check("asking for counters")
        return self._client.engine.counters()

    @property
    def idle(self) -> bool:
        """Whether no request is under way and no stage holds resources. A request may count for a moment after its last output."""
        self._client.owner.check("asking for usage")
        return not self._client.handles and self._client.engine.idle

    def _close_if_collected(self, kind: type[BaseException] | None) -> bool:
        """Closes the model without waiting if the garbage collector may have ended its `with` block: it closes suspended generators
        and coroutines at any point of any thread. kind: of the block's exception. Returns whether it is so."""
        if kind is not GeneratorExit:
            return False
        self._client.close_soon()
        return True


def _close_soon(client: weakref.ref[Client]) -> None:
    known = client()
    if known is not None:
        known.close_soon()
