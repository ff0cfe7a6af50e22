"""A device that reserves multiprocessors for one stage, through CUDA's green contexts."""

import importlib
import importlib.util
from typing import Any

import torch

from bench.device import TimedCuda
from omni.device.cuda import CudaStream


def why_not() -> str | None:
    """The reason against streams with multiprocessors of their own here; None if there is none before the first try.

    torch wraps green contexts, but its releases differ in how a stream of one is made; NVIDIA's own bindings make them directly.
    """
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        return "cuda-bindings, which makes their streams, is not installed"
    return None


class GreenCuda(TimedCuda):
    """Streams of `stage` run on `reserved` multiprocessors (as many as the hardware's granularity makes of them), all others on the
    rest. Raises RuntimeError where the driver refuses."""

    def __init__(self, stage: str, count: int) -> None:
        super().__init__()
        driver: Any = importlib.import_module("cuda.bindings.driver")
        self._driver = driver
        self._stage = stage
        torch.cuda.init()
        torch.zeros(1, device="cuda")  # the primary context, from which green ones are made
        self._own_device = self._check(driver.cuDeviceGet(torch.cuda.current_device()))
        kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        whole = self._check(driver.cuDeviceGetDevResource(self._own_device, kind))
        groups, _, rest = self._check(driver.cuDevSmResourceSplitByCount(1, whole, 0, count))
        self.reserved, self.others = int(groups[0].sm.smCount), int(rest.sm.smCount)
        self._contexts = {True: self._context(groups[0]), False: self._context(rest)}

    def stream(self, name: str, *, priority: int = 0) -> CudaStream:
        owned = name == self._stage or name.startswith(f"{self._stage}-")
        flags = self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        handle = self._check(self._driver.cuGreenCtxStreamCreate(self._contexts[owned], flags, priority))
        raw = torch.cuda.ExternalStream(int(handle), device=self.torch_device)
        return CudaStream(name, raw, torch.cuda.graph_pool_handle())

    def _context(self, resource: Any) -> Any:
        descriptor = self._check(self._driver.cuDevResourceGenerateDesc([resource], 1))
        flags = self._driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        return self._check(self._driver.cuGreenCtxCreate(descriptor, self._own_device, flags))

    def _check(self, result: tuple[Any, ...]) -> Any:
        """The result of a driver's call. Raises RuntimeError if it failed."""
        error, *values = result
        if int(error) != 0:
            raise RuntimeError(f"the driver refused: {error}")
        return values[0] if len(values) == 1 else values
