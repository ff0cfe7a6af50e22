"""Torch's flight recorder, which would take the Python stack of every call, in programs of their own: it is set up once."""

import os
import subprocess
import sys

import pytest

from tests.support.patience import PATIENCE_SECONDS

CALLS = """
import json, os
import torch
from torch._C._distributed_c10d import HashStore, _dump_fr_trace_json
from omni.parallel import open_communicator

before = dict(os.environ)
ranks = open_communicator(HashStore(), 0, 1, torch.device("cpu"), 30)
for _ in range(7):
    ranks.all_reduce(torch.ones(2))
ranks.close()
assert dict(os.environ) == before
print(len(json.loads(_dump_fr_trace_json(True, False)).get("entries", ())))
"""


@pytest.mark.parametrize(
    ("asked", "kept"),
    [({}, 0), ({"TORCH_FR_BUFFER_SIZE": "5"}, 5), ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "5"}, 5)],
    ids=["as shipped", "asked", "asked by the old name"],
)
def test_calls_are_recorded_only_for_those_who_ask(asked: dict[str, str], kept: int) -> None:
    program = [sys.executable, "-c", CALLS]
    ended = subprocess.run(
        program, env={**os.environ, **asked}, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, f"{kept}\n"), ended.stderr
