"""FlashInfer itself, where it is installed, against attention by brute force in float64. It compiles its kernels when they are
first called, which takes a minute or two.

Its arguments are also tested without it, against a fake: test_attention.py.
"""

from importlib.util import find_spec

import pytest
import torch

from omni.device import open_device
from omni_ar.attention.flashinfer import FlashInferAttention
from omni_ar.options import MAX_IN_FLIGHT
from tests.stages.omni_ar.paged_rows import LAYER, PagedRows, check_attention, mixed_batch
from tests.support.devices import no_synchronization

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_spec("flashinfer") is None, reason="flashinfer-python is not installed"),
    # Warnings at import are FlashInfer's own.
    pytest.mark.filterwarnings("default"),
]

_CYCLES = 400_000_000
"""A fifth of a second of the device."""


@pytest.mark.parametrize(
    ("dtype", "head_dim", "group"),
    [(torch.bfloat16, 128, 8), (torch.bfloat16, 64, 2), (torch.float16, 128, 3)],
    ids=["bf16-128-8", "bf16-64-2", "fp16-128-3"],
)
def test_prompts_of_all_kinds(dtype, head_dim, group):
    backend = FlashInferAttention(open_device("cuda"))
    shape = {"head_dim": head_dim, "group": group, "block_size": 16, "dtype": dtype, "device": "cuda"}
    for seed, (decodes, prefills) in enumerate(
        [
            ([], [(0, 1)]),
            ([], [(0, 16), (0, 17), (0, 300)]),
            ([], [(1, 1), (129, 40), (16, 16), (0, 5)]),
            ([70, 1, 0, 33], [(20, 130), (0, 5), (511, 1)]),
        ]
    ):
        world = PagedRows(seed, blocks=128, **shape)
        q, meta, expected = mixed_batch(world, decodes, prefills, spare_columns=1)
        for _ in range(2):  # a plan serves all layers
            check_attention(backend.attend(q, world.cache, LAYER, meta), expected)


def test_steps_in_flight_keep_their_plans_and_wait_for_nothing():
    device = open_device("cuda")
    backend = FlashInferAttention(device)
    world = PagedRows(9, head_dim=128, group=2, block_size=16, blocks=512, dtype=torch.bfloat16, device="cuda")
    batches = [
        mixed_batch(world, [17 + turn], [(3 * turn, 5 + 11 * turn), (0, 40 - 2 * turn)])
        for turn in range(MAX_IN_FLIGHT + 1)
    ]
    q, meta, _ = batches[0]
    backend.attend(q, world.cache, LAYER, meta)  # kernels are compiled and loaded
    late = 0
    for _ in range(3):
        device.synchronize()
        torch.cuda._sleep(_CYCLES)
        with no_synchronization():
            results = [backend.attend(q, world.cache, LAYER, meta) for q, meta, _ in batches]
        late += not torch.cuda.current_stream().query()
        for ours, (_, _, expected) in zip(results, batches, strict=True):
            check_attention(ours, expected)
    assert late == 3, "the host waited for the device"
