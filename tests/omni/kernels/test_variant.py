"""Arguments are reduced to what Triton compiles for: no less, or a kernel would be missing, and no more, or there would be many."""

import math
from collections import namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

import triton
import triton.language as tl
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import BaseBackend
from triton.tools.tensor_descriptor import TensorDescriptor

from omni.kernels.variant import Parameters, Variant

Pair = namedtuple("Pair", ["left", "right"])


@triton.jit(do_not_specialize=["general"])
def some(value, general, scale, SIZE: tl.constexpr, OTHER: tl.constexpr = 7):
    pass


def variant(value: object = None, general: object = 0, scale: object = 0.5, **rest: object) -> Variant:
    given = {"value": value, "general": general, "scale": scale, "SIZE": 1, **rest}
    return Variant.of(Parameters.of(some), given)


def triton_sees(value: object, specialized: bool = True) -> object:
    return native_specialize_impl(BaseBackend, value, False, specialized, True)


def rebuilt(value: object, name: str = "value") -> object:
    return variant(**{name: value}).rebuilt()[name]


EDGES = [0, 1, 2, 15, 16, 17, -1, -16, 2**31 - 1, 2**31, 2**31 + 16, 2**32, 2**63 - 1, 2**63, 2**64 - 16]
INTEGERS = st.sampled_from(EDGES) | st.integers(-(2**31) + 1, 2**64 - 1)


@given(INTEGERS)
def test_integers_are_those_that_triton_tells_apart(value: int):
    assert triton_sees(rebuilt(value)) == triton_sees(value)
    assert triton_sees(rebuilt(value, "general"), False) == triton_sees(value, False)


@given(INTEGERS, INTEGERS)
def test_integers_that_triton_does_not_tell_apart_are_one(one: int, other: int):
    assert (variant(one) == variant(other)) == (triton_sees(one) == triton_sees(other))
    alike = triton_sees(one, False) == triton_sees(other, False)
    assert (variant(general=one) == variant(general=other)) == alike


@pytest.mark.parametrize("offset", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8])
def test_pointers_have_a_type_and_an_alignment(dtype: torch.dtype, device: str, offset: int):
    tensor = torch.empty(64, dtype=dtype, device=device)[offset:]
    assert triton_sees(rebuilt(tensor)) == triton_sees(tensor)
    assert variant(tensor) == variant(torch.empty(99, dtype=dtype)[offset:])


@pytest.mark.parametrize("value", [None, True, False, 1.5, math.inf])
def test_other_arguments_are_as_triton_sees_them(value: object):
    assert triton_sees(rebuilt(value)) == triton_sees(value)


def test_tuples_keep_their_type_and_descriptors_their_blocks():
    tensor = torch.empty(4, 8)
    pair = rebuilt(Pair(tensor, 32))
    assert isinstance(pair, Pair)
    assert triton_sees(pair) == triton_sees(Pair(tensor, 32))
    assert triton_sees(rebuilt((tensor, 1))) == triton_sees((tensor, 1))
    tile = TensorDescriptor.from_tensor(tensor, [2, 4])
    assert triton_sees(rebuilt(tile)) == triton_sees(tile)
    assert variant(tile) != variant(TensorDescriptor.from_tensor(tensor, [4, 4]))


def test_constants_and_options_are_part_of_a_variant():
    assert variant(SIZE=2) != variant(SIZE=3)
    assert variant(num_warps=2) != variant(num_warps=4)
    assert variant(OTHER=7) == variant()
    assert variant(num_warps=4, num_stages=3).rebuilt() == variant(num_stages=3, num_warps=4).rebuilt()
    assert variant().kernel == f"{__name__}:some"


def test_arguments_that_another_process_cannot_have_are_refused():
    with pytest.raises(TypeError, match="an argument is of type object"):
        variant(object())
    with pytest.raises(TypeError, match="a constant is of type list"):
        variant(SIZE=[1])
