"""Logits processors of plugins inside the sampler: their arguments, and the rows whose logits they change."""

import torch

from omni_ar.processors import LogitsProcessor, NamedProcessor
from tests.support.sampler_bench import SamplerBench, resolved, starting

VOCAB = 9


class Push(LogitsProcessor):
    """Adds its second parameter to the id that its first names, and forbids 6."""

    width = 2

    def pack(self, args, vocab_size):
        return args["id"], args["by"]

    def apply(self, logits_RV, rows):
        ids_R1 = rows.params_RW[:, :1].long()
        forbidden_V = torch.arange(VOCAB) == 6
        return logits_RV.scatter_add(1, ids_R1, rows.params_RW[:, 1:]).masked_fill(forbidden_V, float("-inf"))


class Watch(LogitsProcessor):
    """Keeps its arguments, and makes every id impossible."""

    width = 0

    def __init__(self):
        self.shown = []

    def pack(self, args, vocab_size):
        return ()

    def apply(self, logits_RV, rows):
        self.shown.append((rows.num_outputs_R.tolist(), rows.last_R.tolist(), rows.counts_RV.tolist()))
        return torch.full_like(logits_RV, float("-inf"))


def bench_of(*rows):
    """rows: (prompt, outputs, params by processor)."""
    watch = Watch()
    processors = (NamedProcessor("push", Push(), 2), NamedProcessor("watch", watch, 0))
    bench = SamplerBench(VOCAB, len(rows), processors)
    for place, (prompt, outputs, params) in enumerate(rows):
        asked = resolved(VOCAB, processors={name: {} for name in params})
        bench.start([starting(place, asked, prompt, outputs=outputs, params=params)])
    return bench, watch.shown


def test_a_processor_changes_the_logits_of_rows_that_ask_for_it():
    bench, shown = bench_of(([1], [], {"push": (4, 9)}), ([1], [], {}), ([1], [], {"push": (2, 9)}))
    logits_RV = torch.zeros(3, VOCAB)
    logits_RV[:, 6] = 5
    before = logits_RV.clone()
    assert bench.sample(logits_RV, [0, 1, 2], [0, 0, 0]) == [4, 6, 2]
    assert bench.sample(logits_RV, [2, 1, 0], [0, 0, 0]) == [2, 6, 4]
    assert torch.equal(logits_RV, before)
    assert shown == []


def test_a_processor_sees_generated_tokens_and_no_prompt():
    bench, shown = bench_of(([1, 2], [], {"watch": ()}), ([3], [4, 4, 5], {"watch": (), "push": (0, 0)}))
    zeros = torch.zeros(2, VOCAB)
    assert bench.sample(zeros, [0, 1], [0, 3]) == [-1, -1]
    bench.observe([0, 1], [[7], [4]], [1, 1])
    assert bench.sample(zeros, [0, 1], [1, 4]) == [-1, -1]
    one, two = shown
    counts = [[0] * VOCAB, [0, 0, 0, 0, 2, 1, 0, 0, 0]]
    assert one == ([0, 3], [-1, 5], counts)
    counts[0][7], counts[1][4] = 1, 3
    assert two == ([1, 4], [7, 4], counts)


def test_a_row_set_up_afresh_uses_its_own_parameters_only():
    bench, _ = bench_of(([1], [], {"watch": ()}), ([1], [], {"push": (3, 1)}))
    bench.start([starting(0, resolved(VOCAB, processors={"push": {}}), params={"push": (5, 1)})])
    assert bench.sample(torch.zeros(2, VOCAB), [0, 1], [0, 0]) == [5, 3]
