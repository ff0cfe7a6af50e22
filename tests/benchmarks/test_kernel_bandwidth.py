"""benchmarks/kernel_bandwidth.py calls every kernel that a layer or a step is made of."""

import json
from pathlib import Path

import pytest

from tests.benchmarks.benchmark_script import run_script

OPERATIONS = {
    "accept_tokens",
    "add_rms_norm",
    "attend_decodes",
    "attend_frame",
    "attend_prompts",
    "draw",
    "end_frames",
    "frame_inputs",
    "gated_linear",
    "linear",
    "linear_parts",
    "mix_experts",
    "norm_linear",
    "place_frames",
    "post_update",
    "prepare_decodes",
    "qk_norm_rope_write",
    "rms_norm",
    "rotary_table",
    "sample",
    "silu_and_mul",
}


def test_every_operation_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "kernels.json"
    run_script(monkeypatch, "kernel_bandwidth", "--device", "cpu", "--tiny", "--json", str(file))
    cases = json.loads(file.read_text())["numbers"]
    assert {case["name"].split()[0] for case in cases} == OPERATIONS
    assert all(case["bytes"] > 0 and case["seconds"] > 0 for case in cases)
