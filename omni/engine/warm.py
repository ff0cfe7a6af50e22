"""Compiles the kernels of an engine's stages while their weights are loaded."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue

import torch

from omni.device import Device
from omni.engine.memory import Budget
from omni.engine.rows import divide_memory
from omni.kernels import (
    Compiled,
    CompileProcesses,
    RecordingDevice,
    ShapeRules,
    StartRecord,
    Variant,
    VariantRecorder,
)
from omni.stage import LoadedStage, WarmStage, most_rows
from omni.utils.log import safe_logger

_log = safe_logger(__name__)

Load = Callable[[Device, str], LoadedStage]
"""Loads a stage, by name, onto a device without memory."""


@dataclass(frozen=True, slots=True)
class WarmupPlan:
    """The inputs that determine the kernels of a start. device: the device that they are compiled for. budget: memory of the
    stages. settings, packages: as for `StartRecord`, beside the stages; without settings no record is kept."""

    device: torch.device
    stages: Sequence[str]
    load: Load
    budget: Budget | None = None
    settings: object = None
    packages: Collection[str] = ()


class KernelWarmup:
    """Records the variants of kernels that stages need, in a thread, and has processes compile each one at once.

    Errors are logged at debug level and otherwise ignored: a variant that is not compiled here is compiled at its first launch.
    """

    def __init__(self, plan: WarmupPlan, workers: int, processes: CompileProcesses | None = None) -> None:
        """Loads the stages. workers: number of worker processes, at least 1. processes: started before, and closed by `close`; None
        starts them here."""
        self._plan = plan
        self._workers = workers
        self._closed = threading.Event()
        self._queue: SimpleQueue[Variant | None] = SimpleQueue()
        """The variants to compile; None follows the last one."""
        self._recorder = VariantRecorder(on_variant=self._queue.put)
        self._record_device = RecordingDevice(plan.device, self._recorder)
        self._record: StartRecord | None = None
        self._processes = processes if processes is not None else CompileProcesses()
        try:
            # Not in the thread: while transformers builds a module, its dtype is the process's default.
            self._loaded = load_empty(plan.stages, plan.load, self._record_device)
        except BaseException:
            self._processes.close()
            raise
        self._thread = threading.Thread(target=self._run, name="omni-kernels", daemon=True)
        self._thread.start()

    def wait(self) -> Compiled:
        """Waits until all variants are recorded and compiled, or cannot be."""
        self._thread.join()
        return self._processes.wait()

    def forget_record(self) -> None:
        """Has the next start record its variants: this one launched others."""
        if self._record is not None:
            self._record.forget()

    def close(self) -> None:
        """Ends the processes and the thread. Idempotent."""
        self._closed.set()
        self._processes.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            capability = torch.cuda.get_device_capability(self._plan.device)
            self._processes.compile(iter(self._queue.get, None), capability, self._workers)
        except Exception as error:
            _log.debug("kernels are not compiled by processes", exc_info=error)
            self._processes.close()
            return
        try:
            self._find_variants()
        except BaseException as error:  # includes exceptions of plugins
            _log.debug("further kernels are not compiled by processes", exc_info=error)
        finally:
            self._queue.put(None)

    def _find_variants(self) -> None:
        """Queues the variants that an equal earlier start recorded; else records them."""
        plan = self._plan
        if plan.settings is not None:
            # Rows follow from the budget, which is never the same to the byte.
            budget_gib = None if plan.budget is None else round(plan.budget.bytes / 2**30)
            gpu = torch.cuda.get_device_properties(plan.device).name
            self._record = StartRecord((plan.settings, sorted(self._loaded), gpu, budget_gib), plan.packages)
            known = self._record.read()
            if known is not None:
                for variant in known:
                    self._queue.put(variant)
                return
        whole = record_stages(self._loaded, self._record_device, plan.budget, closed=self._closed.is_set)
        if self._record is not None and whole and len(self._loaded) == len(plan.stages):
            self._record.write(tuple(self._recorder.variants))


def load_empty(stages: Iterable[str], load: Load, device: RecordingDevice) -> dict[str, LoadedStage]:
    """Loads `stages` onto `device`, without stages that fail to load there."""
    loaded: dict[str, LoadedStage] = {}
    for name in stages:
        with _recorded_in_part(name), ShapeRules():
            loaded[name] = load(device, name)
    return loaded


def record_stages(
    loaded: Mapping[str, LoadedStage],
    device: RecordingDevice,
    budget: Budget | None,
    *,
    closed: Callable[[], bool] = lambda: False,
) -> bool:
    """Records the launches of stages at start. Errors end the recording of a stage. closed: whether to end early. Returns whether
    every stage was recorded to its end.

    Rows that follow from memory are counted without the working memory of steps, which nothing has measured yet. So there may be
    more of them than later, and their kernels are recorded too.
    """
    ended = []
    with _recorded_in_part(*loaded):
        divide_memory(loaded, device, budget, None, most_rows(device.kernel_device))
        ended.append("division")
    for name, stage in loaded.items():
        with _recorded_in_part(name), torch.inference_mode():
            if isinstance(stage, WarmStage) and not closed():
                stage.warm_up()
            ended.append(name)
    return len(ended) == 1 + len(loaded) and not closed()


@contextmanager
def _recorded_in_part(*stages: str) -> Iterator[None]:
    try:
        yield
    # A stage may support no such device; a start without weights cannot report it.
    except (Exception, SystemExit) as error:
        _log.debug("the kernels of %s are recorded in part", ", ".join(stages), exc_info=error)


@contextmanager
def compiling(
    plan: WarmupPlan, workers: int, processes: CompileProcesses | None = None
) -> Iterator[KernelWarmup | None]:
    """While entered, processes compile the kernels of stages; None if the device is not CUDA, or no process can compile. At the
    end, all of its processes and threads have ended. workers: 0 for none. processes: as in `KernelWarmup`."""
    if plan.device.type != "cuda" or not workers:
        if processes is not None:
            processes.close()
        yield None
        return
    try:
        warmup = KernelWarmup(plan, workers, processes)
    except OSError as error:
        _log.warning("no process can compile kernels, so the start takes longer: %s", error)
        yield None
        return
    try:
        yield warmup
    finally:
        warmup.close()
