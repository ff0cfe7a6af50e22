"""Compiles the kernels of an engine's stages while their weights are loaded."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from omni.device import Device
from omni.kernels import Compiled, CompileProcesses, RecordingDevice, Variant, VariantRecorder
from omni.stage import LoadedStage, WarmStage

_log = logging.getLogger(__name__)

Load = Callable[[Device, str], LoadedStage]
"""Loads a stage, by name, onto a device without memory."""


class KernelWarmup:
    """Records the variants of kernels that stages need, in a thread, and has processes compile them.

    Errors here are logged at debug level and otherwise ignored: what is not compiled is compiled at its first launch.
    """

    def __init__(self, device: torch.device, stages: Iterable[str], load: Load, processes: int) -> None:
        """device: the device that kernels are compiled for. processes: at least 1."""
        self._device = device
        self._stages = tuple(stages)
        self._load = load
        self._closed = threading.Event()
        self._processes = CompileProcesses(processes)
        self._thread = threading.Thread(target=self._run, name="omni-kernels", daemon=True)
        self._thread.start()

    def wait(self) -> Compiled:
        """Waits until all variants are recorded and compiled, or cannot be."""
        self._thread.join()
        return self._processes.wait()

    def close(self) -> None:
        """Ends the processes and the thread. Idempotent."""
        self._closed.set()
        self._processes.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            variants = self._recorded()
            if not self._closed.is_set():
                self._processes.compile(variants, torch.cuda.get_device_capability(self._device))
        except BaseException as error:  # also what a plugin raises
            _log.debug("kernels are not compiled by processes", exc_info=error)
            self._processes.close()

    def _recorded(self) -> list[Variant]:
        recorder = VariantRecorder()
        for name in self._stages:
            if not self._closed.is_set():
                record_stage(name, self._load, RecordingDevice(self._device, recorder))
        return list(recorder.variants)


def record_stage(name: str, load: Load, device: RecordingDevice) -> None:
    """Records the launches of a stage at start. Errors end the recording of this stage."""
    try:
        stage = load(device, name)
        if isinstance(stage, WarmStage):
            with torch.inference_mode():
                stage.warm_up()
    except BaseException as error:  # a stage may support no such device; an engine without weights cannot say so
        _log.debug("the kernels of stage %r are recorded in part", name, exc_info=error)


@contextmanager
def compiling(
    device: torch.device, stages: Iterable[str], load: Load, processes: int
) -> Iterator[Callable[[], Compiled]]:
    """While entered, processes compile the kernels of stages, if `device` runs any. Gives a function that waits for them.
    Nothing of it is left at the end. processes: 0 for none."""
    if device.type != "cuda" or not processes:
        yield Compiled
        return
    try:
        warmup = KernelWarmup(device, stages, load, processes)
    except OSError as error:
        _log.warning("no process can compile kernels, so the start takes longer: %s", error)
        yield Compiled
        return
    try:
        yield warmup.wait
    finally:
        warmup.close()
