"""How padding changes the rounding of Qwen3-Omni's towers in bfloat16: by operation, and against float64.

    python benchmarks/encoder_rounding.py [--shape NAME] [--most N] [--json FILE]

An item is encoded as it is, and padded. Each operation is then made again on the inputs that it had in the first case, with those
of the padding behind them. `changed`: calls whose results have other bits then. `alone`: the largest difference of such a call;
`carried`: that of the two encodings, which earlier operations contribute to. Both are shares of the largest value. `from float64`:
the norm of the differences from the same weights in float64, as a share of its norm. Weights are random.
"""

import argparse
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from bench.arguments import device_here, output_file, positive_int
from bench.device import TimedDevice, open_timed
from bench.report import environment, print_facts, print_table, write_json
from encoders import load
from omni.device import SyncPoint, may_sync
from omni.device.kernel_choice import plain_torch
from omni_encoder import segments
from omni_encoder.batch import BatchEncoder
from omni_encoder.kernels.segment_attention import attend_segments
from omni_encoder.model import EncoderModel
from shapes import SHAPES

_FULL = {"audio_encoder": ((13, 64), (65, 128), (390, 512), (1027, 1040)), "vision_encoder": ((49, 64), (576, 768))}
_TINY = {"audio_encoder": ((13, 64),), "vision_encoder": ((9, 16),)}
"""Embeddings of an item, and the length that it is padded to."""


@dataclass(frozen=True, slots=True)
class OperationCall:
    """A call of `operation`. inputs: its tensors, whose first dimension padding lengthens."""

    name: str
    operation: Callable[..., Tensor]
    inputs: Sequence[Tensor]
    result: Tensor


@contextmanager
def recording(model: nn.Module) -> Iterator[list[OperationCall]]:
    """The calls of attention, and of modules with weights of their own, in order."""
    calls: list[OperationCall] = []

    def attended(
        q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, lengths: tuple[int, ...] | None, scale: float
    ) -> Tensor:
        def again(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor) -> Tensor:
            return attend_segments(q, k, v, bounds, None, scale)

        result = attend_segments(q, k, v, bounds, lengths, scale)
        calls.append(OperationCall("attention", again, (q, k, v, bounds), result))
        return result

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda module, given, result: calls.append(OperationCall(name, module.forward, given, result))

    hooks = [
        module.register_forward_hook(hook(re.sub(r"\.\d+\b", "", name)))
        for name, module in model.named_modules()
        if list(module.parameters(recurse=False))
    ]
    with patch.object(segments, "attend_segments", attended):
        yield calls
    for each in hooks:
        each.remove()


def encoded(device: TimedDevice, model: EncoderModel, item: dict[str, Tensor], lengths: Sequence[int] = ()) -> Tensor:
    """The embeddings of an item, in a batch that is padded to one of `lengths`."""
    encoder = BatchEncoder(device, device.stream("encode"), model, lengths)
    batch = encoder.prepare([item])
    while not batch.transfer.finished:
        encoder.send(batch)
    outputs = encoder.launch(batch).outputs[0]
    device.synchronize()
    return outputs["embeddings"]


def share(result: Tensor, other: Tensor) -> float:
    return float((result - other).abs().max() / other.abs().max())


def from_float64(result: Tensor, exact: Tensor) -> float:
    return float((result.double() - exact).norm() / exact.norm())


def compare(plain: Sequence[OperationCall], padded: Sequence[OperationCall]) -> list[dict[str, Any]]:
    """A row for each operation, in order of the first calls. Overwrites inputs in `padded`, which keeps their strides."""
    rows: dict[str, dict[str, Any]] = {}
    for call, longer in zip(plain, padded, strict=True):
        row = rows.setdefault(
            call.name, {"operation": call.name, "calls": 0, "changed": 0, "alone": 0.0, "carried": 0.0}
        )
        carried = share(longer.result[: len(call.result)], call.result)
        for own, there in zip(call.inputs, longer.inputs, strict=True):
            there[: len(own)] = own
        alone = share(longer.operation(*longer.inputs)[: len(call.result)], call.result)
        row["calls"] += 1
        row["changed"] += alone > 0
        row["alone"] = max(row["alone"], alone)
        row["carried"] = max(row["carried"], carried)
    return list(rows.values())


def run(
    stage: str, folder: Path, device: TimedDevice, sizes: Sequence[tuple[int, int]], most: int
) -> Iterator[dict[str, Any]]:
    model = load(stage, folder, device).to(torch.bfloat16)
    exact_model = deepcopy(model).double()
    for embeddings, length in sizes:
        if embeddings > most:
            continue
        sample = model.largest_item(embeddings)
        item = {name: torch.rand_like(t) if t.is_floating_point() else t for name, t in sample.features.items()}
        with recording(model) as calls:
            plain = encoded(device, model, item)
        with recording(model) as longer:
            padded = encoded(device, model, item, (length,))
        with plain_torch():
            exact = encoded(device, exact_model, item)
        yield {
            "tower": stage,
            "embeddings": sample.length,
            "padded to": length,
            "apart": share(padded, plain),
            "from float64": from_float64(plain, exact),
            "padded, from float64": from_float64(padded, exact),
            "operations": compare(calls, longer),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", type=device_here("--device cpu"), choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-omni-30b")
    parser.add_argument("--tiny", action="store_true", help="the tiny shape, small items: to see that it runs")
    parser.add_argument(
        "--most", type=positive_int, default=2048, metavar="N", help="leave out items of more embeddings"
    )
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    device = open_timed(arguments.device)
    torch.manual_seed(0)
    rows = []
    with tempfile.TemporaryDirectory() as name, torch.inference_mode(), may_sync(SyncPoint.MEASURE):
        folder = Path(name) / "model"
        SHAPES["tiny-omni" if arguments.tiny else arguments.shape](folder)
        for stage, sizes in (_TINY if arguments.tiny else _FULL).items():
            for row in run(stage, folder, device, sizes, arguments.most):
                rows.append(row)
                operations = row["operations"]
                print_table(tuple(operations[0]), [tuple(each.values()) for each in operations])
    print_table(tuple(rows[0])[:-1], [tuple(row.values())[:-1] for row in rows])
    print_facts(environment())
    write_json(arguments.json, rows, environment())


if __name__ == "__main__":
    main()
