"""Settings of the engine."""

from collections.abc import Sequence
from typing import Literal, cast

import msgspec
import torch

from omni.config import Setting, SettingsLayer, overlay
from omni.pipeline import ENGINE

Scheduling = Literal["slack", "fixed"]
"""How stages schedule: by the slack of listeners, or without regard to it."""

EngineProcess = Literal["auto", "thread", "process"]
"""The place of the engine: a thread of the user's process, or a process of its own. `"auto"` is a process for a CUDA
device on Linux, else a thread."""


_TOO_MUCH = 2**63
"""Every number is below it: messages to an engine's process hold no larger integers."""


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the engine: devices, memory and admission.

    device: `"cpu"`, `"cuda"` or `"cuda:N"`; None selects the first CUDA device if there is one, else the CPU.
    process: see `EngineProcess`. In a process of its own, the user's Python code cannot delay a step.
    dtype: of weights and activations; None is float32 on the CPU and bfloat16 elsewhere.
    load_format: `"auto"` reads the checkpoint; `"dummy"` fills weights with random numbers on the device.
    graphs: whether stages capture their steps at start and replay them; None: only on a CUDA device, where it is faster.
    compile_processes: processes that compile the kernels of CUDA devices while weights load; None is one for each core less two,
        divided among the engines of the model. 0 compiles each kernel at its first launch, one after the other.
    memory_bytes: device memory that the stages share; None uses the free memory of a CUDA device, and sets no bound on
        the CPU.
    scheduling: `"slack"`: which stages launch first, prefill and the chunks of vocoders depend on the slack of listeners;
        `"fixed"`: they do not. None is `"slack"` on a CUDA device, else `"fixed"`: on the CPU, samples are then the same
        bits in every run.
    short_slack: seconds of sound ahead of a listener below which prefill steps are brief.
    ample_slack: seconds of sound ahead of every listener from which other stages may launch before those that make sound.
    timeline: a file for the timeline of the stages' launches, written when the engine closes; None records none.
    restarts: how often an engine's process that ended is started again, before the requests of its stages are refused.
        Counted anew when it has run for a minute.
    restart_seconds: the wait before the first of them; each further wait is twice as long.
    turn_seconds: limit of a turn of the loop of an engine with a process of its own. Beyond it the process ends with an error: its
        device or a stage hangs. None is 300 s on a CUDA device, or 60 s with ranks of a cut stage, and no limit on the CPU, where a
        step runs within a turn.
    max_active_requests: requests at the stages at once; more wait on the host.
    max_waiting_requests: requests that may wait, for downloads, preparation or the engine.
    max_waiting_bytes: host memory of the waiting requests: first their messages, then their prepared inputs. Beyond
        either limit, the least urgent requests are refused.
    max_unread_bytes: host memory of an answer's outputs that the program has not read. Beyond it the answer ends with an
    OverloadedError, after its existing outputs.
    """

    device: str | None = None
    process: EngineProcess = "auto"
    dtype: str | None = None
    load_format: str = "auto"
    graphs: bool | None = None
    compile_processes: int | None = None
    memory_bytes: int | None = None
    scheduling: Scheduling | None = None
    short_slack: float = 0.3
    ample_slack: float = 1.0
    timeline: str | None = None
    restarts: int = 3
    restart_seconds: float = 0.5
    turn_seconds: float | None = None
    max_active_requests: int = 256
    max_waiting_requests: int = 10_000
    max_waiting_bytes: int = 8 * 2**30
    max_unread_bytes: int = 128 * 2**20

    def __post_init__(self) -> None:
        limits = {
            "restarts": 0,
            "restart_seconds": 0,
            "turn_seconds": 0.1,
            "compile_processes": 0,
            "memory_bytes": 1,
            "short_slack": 0,
            "ample_slack": 0,
            "max_active_requests": 1,
            "max_waiting_requests": 0,
            "max_waiting_bytes": 1,
            "max_unread_bytes": 1,
        }
        for name, least in limits.items():
            value = getattr(self, name)
            if value is not None and not least <= value < _TOO_MUCH:  # true of NaN too
                most = ", and below 2^63" if value >= _TOO_MUCH else ""
                raise ValueError(f"{name} must be at least {least}{most}")


def engine_options(layers: Sequence[SettingsLayer]) -> tuple[EngineOptions, tuple[Setting, ...]]:
    """The engine's options from layers, and the origin of each. Raises ConfigError."""
    options, settings = overlay({ENGINE: EngineOptions()}, [layer.only(ENGINE) for layer in layers])
    return cast(EngineOptions, options[ENGINE]), settings


def dtype_for(options: EngineOptions, device: torch.device) -> str:
    """The dtype of the options, by default the one for the device."""
    return options.dtype or ("float32" if device.type == "cpu" else "bfloat16")
