"""What tensors of payloads are refused where they are made: those whose values cannot be read."""

import pytest
import torch

from omni.errors import ReturnedError
from omni.payload.checks import checked_tensors


def freed(held: int, first: int = 0, step: int = 1) -> torch.Tensor:
    """Each `step`-th of 8 values from `first` on, of whose memory `held` bytes are left."""
    tensor = torch.zeros(8)[first::step]
    tensor.untyped_storage().resize_(held)
    return tensor


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, 3),
        lambda: torch.zeros(()),
        lambda: torch.zeros(0, 3),
        lambda: torch.zeros(4, 6)[1:, ::2],
        lambda: torch.zeros(4).expand(3, 4),
        lambda: torch.zeros(3, 0).t(),
        lambda: torch.zeros(3, dtype=torch.complex64).conj().imag,
        lambda: torch.nn.Parameter(torch.zeros(3)),
        lambda: torch.zeros(8)[:0],
    ],
)
def test_tensors_of_values_are_passed_on(make) -> None:
    tensors = {"x": make()}
    assert checked_tensors(tensors, "tensors", None) is tensors


@pytest.mark.filterwarnings("ignore")  # torch reports some of these as deprecated
@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: freed(0), r"\[8\], and its memory was freed: it has 0 bytes; give a tensor that owns its values"),
        (lambda: freed(0, step=2), r"\[4\], and its memory was freed: it has 0 bytes"),
        (lambda: freed(16, step=2), r"\[4\], and its memory was freed: it has 16 bytes"),
        (lambda: torch.nn.Parameter(freed(16)), r"\[8\], and its memory was freed: it has 16 bytes"),
        (lambda: freed(16), r"\[8\], and its memory was freed: it has 16 bytes"),
        (lambda: freed(0, first=2), r"\[6\], and its memory was freed: it has 0 bytes"),
        (lambda: torch.zeros(3, device="meta")[1:], "on the meta device, which holds no values"),
        (lambda: torch.eye(3).to_sparse_csr(), "torch.sparse_csr: give a dense tensor"),
        (lambda: torch.zeros(3, device="meta"), "on the meta device, which holds no values"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "quantized: give its values"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested: give a tensor for each"),
        (lambda: torch.eye(3).to_sparse(), "torch.sparse_coo: give a dense tensor"),
        (lambda: torch.zeros(1).expand(10**12), r"\[1000000000000\], expanded from 4 bytes to 4,000,000,000,000"),
    ],
)
def test_tensors_without_values_are_refused(make, problem: str) -> None:
    with pytest.raises(ReturnedError, match=rf"^tensors\['x'\] is {problem}"):
        checked_tensors({"x": make()}, "tensors", None)
