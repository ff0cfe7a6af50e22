"""The checks of a family. Each docstring names the faults that its check detects."""

from contextlib import AbstractContextManager, ExitStack

from omni.device import Device, SyncCheck, sync_guard
from omni.errors import SyncError
from omni.testing.families.bench import BLOCK, FAMILY, FamilyBench
from omni.testing.launch_guard import LaunchGuard
from omni.testing.simulation.device import SimulatedDevice


def alone(bench: FamilyBench) -> None:
    """Catches wrong arithmetic or weights, and results that differ from run to run."""
    bench.run(
        bench.settings(prefix_cache=False),
        "the model itself differs: compare hidden states layer by layer; look at weights under a wrong name, norms, "
        "rotary positions, and layers that are left in training mode",
        alone=True,
        rounds=2,
    )


def together(bench: FamilyBench) -> None:
    """Catches rows that depend on each other."""
    watch, _ = bench.run(
        bench.settings(prefix_cache=False),
        "alone it is right, in a batch it is not: forward gets several requests in one flat tensor, decode rows first; "
        "nothing may be reduced over it, and logits takes one row for each request",
    )
    require_rows(watch.most_requests)


def one_by_one(bench: FamilyBench) -> None:
    """Catches prompts that disturb decode rows of the same step."""
    count = len(bench.cases)
    for apart in (1, 2, 5):
        bench.run(
            bench.settings(prefix_cache=False),
            "requests that join later disturb others: prompts and decode rows share a step, and prompts begin at "
            "batch.prompt_start",
            arrivals=range(0, count * apart, apart),
        )


def in_chunks(bench: FamilyBench) -> None:
    """Catches a chunk of a prompt that is taken for a whole prompt."""
    for budget in (1, 3, BLOCK + 3):
        bench.run(
            bench.settings(max_num_batched_tokens=budget, prefix_cache=False),
            "a prompt comes in chunks of some tokens: positions are those of batch.positions_PT, not counted from 0, "
            "earlier tokens are seen through batch.cache alone, and nothing else is carried from token to token",
        )


def warm_cache(bench: FamilyBench) -> None:
    """Catches state beside the cache: a cached prefix is not computed again."""
    settings = bench.settings(block_size=BLOCK, prefix_cache=True)
    _, counters = bench.run(
        settings,
        "a prompt whose prefix is cached begins after it: everything that later tokens need of earlier ones lies in "
        "batch.cache, and placeholders have a key of all that fills them (Placeholder.key)",
        alone=True,
        rounds=3,
    )
    cached = counters.get("cached_tokens", 1)
    FAMILY.require(
        bool(cached),
        "a prompt that comes again is cached (cached_tokens is 0)",
        f"give a text of {3 * BLOCK} prompt tokens or more, and a key to every placeholder (Placeholder.key)",
    )


def in_flight(bench: FamilyBench) -> None:
    """Catches a step that depends on the host having seen the last token."""
    for steps in (1, 2, 3, 4, 8):
        bench.run(
            bench.settings(max_in_flight=steps),
            f"it is wrong with {steps} steps in flight: a step is launched before the tokens of the last one are known to "
            "the host; take them from NextTokens, and keep no state in Python",
        )


def preempted(bench: FamilyBench) -> None:
    """Catches generated tokens that are embedded otherwise when they come again as part of a prompt."""
    needed = -(-bench.longest // BLOCK)
    blocks = needed + 2
    each = [-(-(len(case.prompt) + bench.family.max_tokens) // BLOCK) for case in bench.cases]
    times = -(-3 * blocks // sum(each))
    cases = bench.cases * max(times, 1)
    settings = bench.settings(
        block_size=BLOCK,
        num_blocks=blocks,
        max_model_len=bench.longest,
        max_num_seqs=len(cases),
        prefix_cache=False,
    )
    _, counters = bench.run(
        settings,
        "a preempted request runs again, its prompt and its tokens in one go: embed_next (and embed_codes) give for a "
        "known token the values that it had when it was sampled, in a batch of any size",
        cases=cases,
    )
    FAMILY.require(
        counters.get("preemptions", 1) > 0,
        f"requests are preempted with {blocks} blocks of {BLOCK} tokens, and none was",
        "give more texts of equal length, or a larger max_tokens",
    )


def aborted(bench: FamilyBench) -> None:
    """Catches requests that depend on one that leaves."""
    cases = bench.cases * 2
    for first in range(4):
        leaving = {index: first + index for index in range(0, len(cases), 2)}
        bench.run(
            bench.settings(max_num_seqs=3),
            "others leave, and this one changes: rows of a batch move when a request ends; keep nothing by row",
            cases=cases,
            departures=leaving,
        )


def replayed(bench: FamilyBench) -> None:
    """Catches a step that cannot be captured: it depends on the launch, not on device memory."""
    bench.run(
        bench.settings(prefix_cache=False),
        "it is wrong when steps are captured once and replayed: shapes and Python values are those of the capture; "
        "read changing values from the tensors of the batch",
        graphs=True,
    )


def late_devices(bench: FamilyBench) -> None:
    """Catches work that relies on the device being done, and memory that two streams use without order."""
    for seed in bench.family.seeds:
        bench.run(
            bench.settings(max_in_flight=3, max_num_seqs=3),
            f"it is wrong on a device that is late (SimulatedDevice({seed})): a phase runs later than the code after its "
            "launch; give it all it needs as arguments or in device memory, and keep nothing in Python",
            arrivals=range(0, 3 * len(bench.cases), 3),
            device=SimulatedDevice(seed),
        )


def guarded(bench: FamilyBench) -> None:
    """Catches waits for the device, and work outside of phases."""
    remedy = (
        "a phase may not wait for the device: no .item(), .tolist() or `if` on a tensor's values, no boolean masks, no "
        "copies from pageable memory"
    )

    def guard(device: Device) -> AbstractContextManager[object]:
        stack = ExitStack()
        stack.enter_context(LaunchGuard(device))
        stack.enter_context(sync_guard(device, SyncCheck.ERROR))
        return stack

    try:
        bench.run(bench.settings(max_in_flight=3), remedy, guard=guard)
    except SyncError as error:
        raise FAMILY.error(f"nothing waits for the device ({error})", remedy) from error


def require_rows(most: int) -> None:
    """Raises AssertionError if requests were never together."""
    FAMILY.require(
        most > 1,
        "requests share steps, and there was never more than one",
        "raise max_num_seqs of the stages",
    )
