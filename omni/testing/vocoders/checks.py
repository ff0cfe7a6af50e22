"""The checks of a vocoder model. Each docstring names the faults that its check detects."""

from contextlib import AbstractContextManager, ExitStack

import torch

from omni.device import SyncCheck, sync_guard
from omni.errors import SyncError
from omni.testing.launch_guard import LaunchGuard
from omni.testing.vocoders.bench import NextFrames, VocoderBench, chunks, require, state_bytes


def declares(bench: VocoderBench) -> None:
    """Catches missing numbers, and a count of samples that is not one."""
    model = bench.model
    for name, number in (("num_groups", model.num_groups), ("sample_rate", model.sample_rate)):
        require(
            isinstance(number, int) and number > 0, f"{name} is a positive number, not {number!r}", "set it in __init__"
        )
    require(
        isinstance(bench.fewest, int) and bench.fewest >= 1,
        f"min_first_frames is 1 or more, not {bench.fewest!r}",
        "return 1 unless the first chunk needs more frames for its first sample",
    )
    for frames in range(bench.fewest, bench.fewest + 20):
        for first in (True, False):
            count = model.samples(frames, first)
            require(
                isinstance(count, int) and count >= 0,
                f"samples({frames}, {first}) is 0 or more, not {count!r}",
                "subtract the lookahead from the first chunk only, and raise min_first_frames until it is there",
            )


def one_pass(bench: VocoderBench) -> None:
    """Catches a mute or noisy model, and results that differ from run to run."""
    for request in range(len(bench.requests)):
        bench.require_same(
            bench.stream(bench.requests[request], [len(bench.requests[request])]),
            request,
            "one chunk of all frames",
            "it is whole: look at the layers, and at weights under a wrong name; a model in training mode gives other "
            "samples each time (call eval)",
        )


def chunks_of_any_size(bench: VocoderBench) -> None:
    """Catches state that is not carried from chunk to chunk, and a lookahead that is counted twice."""
    fewest = bench.fewest
    sizes = [[fewest], [fewest, 1], [fewest, 2], [fewest + 1, 3], [fewest + 4, 1, 5, 2], [fewest + 6, 7]]
    for request, codes_NG in enumerate(bench.requests):
        for size in sizes:
            bench.require_same(
                bench.stream(codes_NG, size),
                request,
                f"chunks of {', '.join(map(str, size))} frames, and so on,",
                "carry each layer's context of earlier frames in the state of the row, and nothing over a whole chunk "
                "(no normalization by its length or peak); a transposed convolution carries the overlap",
            )


def batches(bench: VocoderBench) -> None:
    """Catches rows of a batch that depend on each other, or on the padding of a captured batch."""
    count = min(len(codes_NG) for codes_NG in bench.requests)
    rows = [*range(1, len(bench.requests)), 0]  # in an order that is not that of memory
    state = bench.new_state(len(rows))
    null = len(rows)
    stacked_BNG = torch.stack([codes_NG[:count] for codes_NG in bench.requests])
    padding_BNG = stacked_BNG[:1].repeat(2, 1, 1)
    parts: list[list[torch.Tensor]] = [[] for _ in rows]
    for start, end in ((0, bench.fewest + 1), (bench.fewest + 1, count)):
        codes_BNG = torch.cat((stacked_BNG, padding_BNG))[:, start:end]
        wav_BS = bench.run(state, NextFrames([*rows, null, null], codes_BNG, start == 0))
        for index in range(len(rows)):
            parts[index].append(wav_BS[index])
    for request in range(len(rows)):
        wave_S = torch.cat(parts[request])
        right_S = bench.stream(bench.requests[request][:count], [count])
        off = float((wave_S - right_S).abs().max()) if len(wave_S) else 0.0
        require(
            off <= bench.tolerance * float(right_S.abs().max()),
            f"a row of a batch gives the result of the row alone: request {request} in row {rows[request]} is off by {off:.2e}",
            "use rows_B for the state of each row, and reduce nothing over the batch; the last row occurs several times, as "
            "padding",
        )


def interleaved(bench: VocoderBench) -> None:
    """Catches state that belongs to the model and not to the row."""
    count = len(bench.requests)
    state = bench.new_state(count)
    left = [chunks(codes_NG, [bench.fewest + 1, 2 + i % 3], i) for i, codes_NG in enumerate(bench.requests)]
    made: list[list[torch.Tensor]] = [[] for _ in left]
    turn = 0
    while any(left):
        index = turn % count
        if left[index]:
            made[index].append(bench.run(state, left[index].pop(0))[0])
        turn += 1
    for request in range(count):
        bench.require_same(
            torch.cat(made[request]),
            request,
            f"request {request}, whose chunks come between those of others,",
            "keep all state in the rows of `new_state`, at rows_B, and none in the module",
        )


def rows_reused(bench: VocoderBench) -> None:
    """Catches a stream that reads its row's previous state."""
    state = bench.new_state(1)
    for request in [*range(len(bench.requests)), 0]:
        bench.require_same(
            bench.stream(bench.requests[request], [bench.fewest + 2, 3], state),
            request,
            f"request {request} in a row that another has left",
            "a stream begins anew: clear its row in `reset`, or take zeros where `first` is true",
        )


def state_freed(bench: VocoderBench) -> None:
    """Catches memory that grows with the stream."""
    state = bench.new_state(2)
    codes_NG = max(bench.requests, key=len)
    before = 0
    for number, frames in enumerate(chunks(codes_NG, [bench.fewest, 1])):
        bench.run(state, frames)
        held = state_bytes(state) + state_bytes(bench.model)
        before = before or held
        require(
            held <= before,
            f"a stream takes the memory of its row: after {number + 1} chunks the state and the model hold {held - before} "
            "bytes more than after the first",
            "allocate in `new_state` all that a row needs, write into it, and keep no tensors of earlier chunks",
        )


def unknown_codes(bench: VocoderBench) -> None:
    """Catches a model that fails for an id beyond its tables, such as the end of speech."""
    codes_NG = bench.requests[0].clone()
    codes_NG[:, 0] = codes_NG[:, 0].max() + 10_000
    try:
        bench.stream(codes_NG, [len(codes_NG)])
    except (IndexError, RuntimeError) as error:
        require(
            False,
            f"decode takes any code ({type(error).__name__}: {str(error)[:80]})",
            "clamp ids beyond the tables: codes.clamp(max=codebook_size - 1); a GPU would fail for all requests",
        )


def guarded(bench: VocoderBench) -> None:
    """Catches waits for the device."""

    def guard() -> AbstractContextManager[object]:
        stack = ExitStack()
        stack.enter_context(LaunchGuard(bench.device))
        stack.enter_context(sync_guard(bench.device, SyncCheck.ERROR))
        return stack

    bench.guard = guard
    try:
        bench.stream(bench.requests[0], [bench.fewest + 1, 3])
    except SyncError as error:
        require(
            False,
            f"nothing waits for the device ({error})",
            "no .item(), no `if` on a tensor's values, no boolean masks: decode is captured in a graph",
        )
