"""What `Omni` and `AsyncOmni` have in common."""

import os
import weakref
from collections.abc import Callable, Mapping, Sequence

import torch

from omni.api.ask import Sampling, check_ask, split_requests
from omni.api.batch import Batch, Item
from omni.api.client import Client
from omni.api.load import layers_of, load
from omni.pipeline import Pipeline
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
    overrides: settings by dotted path, such as `{"talker.max_num_seqs": 8, "engine.memory_bytes": 2**34}`. They go over the
    file's, and `device`, `dtype` and `load_format` go over both.
    plugins: what `omni.plugin.manager.load_plugins` gave; None loads what is installed.
    timeline: a file that gets the timeline of what the stages launch, when this is closed. `omni timeline` reads it.

    Raises ConfigError, CheckpointError or PluginError. The model stays in memory until `close`, or until this object
    and the streams it gave are gone.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        load_format: str | None = None,
        config: str | os.PathLike[str] | None = None,
        overrides: Mapping[str, object] | None = None,
        plugins: Plugins | None = None,
        timeline: str | os.PathLike[str] | None = None,
    ) -> None:
        layers = layers_of(
            config=config,
            overrides=overrides,
            device=device,
            dtype=dtype,
            load_format=load_format,
            timeline=timeline,
        )
        client = Client(load(model, layers=layers, plugins=plugins))
        self._client = client
        finalizer = weakref.finalize(self, client.close_soon)
        # At the interpreter's end the client closes itself.
        finalizer.atexit = False
        try:
            client.start()
        except BaseException:
            client.close_soon()
            raise

    @property
    def pipeline(self) -> Pipeline:
        """The model's graph with overrides applied: stage names for `sampling`, outputs for `modalities`."""
        return self._client.pipeline

    @property
    def voices(self) -> tuple[str, ...]:
        """Voices a request can name, the default first; empty if it can name none."""
        return self._client.frontend.voices

    @property
    def modalities(self) -> tuple[str, ...]:
        """What the checkpoint can give, and gives unless asked for less."""
        return tuple(output.modality for output in self.pipeline.outputs)

    def usage(self) -> Mapping[str, StageUsage]:
        """What each stage holds right now (requests, rows, blocks, ...): all zero when idle. `"frontend"` is what waits for them:
        requests, and bytes of host memory."""
        return self._client.usage()

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """What each stage has done since the start, in totals by name (tokens, frames, steps, ...)."""
        return self._client.counters()

    @property
    def idle(self) -> bool:
        """No request is under way, and no stage holds anything."""
        return self._client.idle

    def _batch(
        self,
        messages: object,
        modalities: Sequence[str] | None,
        voice: str | None,
        sampling: Sampling,
        priority: int,
        cache_salt: str,
        n: int,
        *,
        keep: bool,
        put: Callable[[Item], None],
        forms: bool = False,
    ) -> tuple[Batch, bool]:
        """The batch, not submitted yet, and whether a list of requests was given. forms: as in `Client.check`.

        Raises InputError for wrong settings, StageError when closed, ForkError in a forked process.
        """
        self._client.check_open()
        ask = check_ask(self.pipeline, modalities, voice, sampling, priority, cache_salt, n)
        self._client.check(ask, forms)
        requests, many = split_requests(messages)
        return Batch(self._client, requests, ask, many=many, keep=keep, put=put), many
