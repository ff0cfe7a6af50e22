"""Selects an attention backend by name."""

import torch

from omni.device import Device
from omni.errors import ConfigError
from omni_ar.attention.base import AttentionBackend
from omni_ar.attention.flash_attention import FlashAttention
from omni_ar.attention.flashinfer import FlashInferAttention
from omni_ar.attention.torch_paged import TorchPagedAttention
from omni_ar.attention.triton_paged import TritonPagedAttention
from omni_ar.model import ArShape
from omni_ar.options import AttentionName


def select_backend(
    stage: str, name: AttentionName, device: Device, *, shape: ArShape, dtype: torch.dtype, block_size: int
) -> AttentionBackend:
    """`"auto"` is `"triton"` on a GPU and `"torch"` elsewhere. One backend serves one stage.

    Raises ConfigError for a backend that is not installed or cannot serve the stage.
    """
    field, kind = f"{stage}.attention_backend", device.kernel_device.type
    # A model on the meta device is only measured: it computes nothing.
    if name == "torch" or kind == "meta" or (name == "auto" and kind != "cuda"):
        attention = TorchPagedAttention()
        # On a GPU, a captured prefill of this backend costs more than it saves.
        attention.captures_prefills = attention.captures_prefills and kind != "cuda"
        return attention
    if kind != "cuda":
        raise ConfigError(field, f"{name!r} runs on CUDA devices alone", 'use "auto" or "torch"')
    if name == "flash_attention":
        _refuse(field, FlashAttention.problem(shape.head_dim, dtype, block_size))
        return FlashAttention(field)
    if name == "flashinfer":
        _refuse(field, FlashInferAttention.problem(shape.head_dim, dtype))
        return FlashInferAttention(device, field)
    return TritonPagedAttention(device)


def _refuse(field: str, problem: tuple[str, str] | None) -> None:
    if problem is not None:
        raise ConfigError(field, *problem)
