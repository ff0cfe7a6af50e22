"""How unevenly a decode step uses experts that are divided among ranks (`expert_parallel`), if tokens choose at random.

    python benchmarks/expert_balance.py [--experts 128] [--top-k 8] [--ranks 2 4] [--rows 1 8 32 128] [--draws 4000]

Counts, and runs no model. "experts": the distinct experts of the rank with the most over the mean of all ranks, which bounds a
step that is bound by memory. "pairs": the same of pairs of a token and an expert, for steps bound by arithmetic.
"""

import argparse

import numpy as np

from bench.arguments import positive_int
from bench.report import print_table


def balance(experts: int, top_k: int, ranks: int, rows: int, draws: int) -> tuple[float, float, float]:
    """Distinct experts of all ranks, and the two ratios, on average. `ranks` divides `experts`."""
    random = np.random.default_rng(0)
    distinct, by_expert, by_pair = 0.0, 0.0, 0.0
    for _ in range(draws):
        chosen = random.random((rows, experts)).argpartition(top_k - 1, axis=1)[:, :top_k]
        pairs = np.bincount(chosen.ravel(), minlength=experts).reshape(ranks, -1)
        used = (pairs > 0).sum(1)
        distinct += used.sum()
        by_expert += used.max() / used.mean()
        by_pair += pairs.sum(1).max() / pairs.sum(1).mean()
    return distinct / draws, by_expert / draws, by_pair / draws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", type=positive_int, default=128)
    parser.add_argument("--top-k", type=positive_int, default=8)
    parser.add_argument("--ranks", type=positive_int, nargs="+", default=[2, 4])
    parser.add_argument("--rows", type=positive_int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--draws", type=positive_int, default=4000)
    arguments = parser.parse_args()
    wrong = [ranks for ranks in arguments.ranks if arguments.experts % ranks]
    if wrong or arguments.top_k > arguments.experts:
        parser.error(f"--ranks {wrong} and --top-k {arguments.top_k} must fit {arguments.experts} experts")
    lines = []
    for rows in arguments.rows:
        for ranks in arguments.ranks:
            distinct, by_expert, by_pair = balance(arguments.experts, arguments.top_k, ranks, rows, arguments.draws)
            lines.append((str(rows), str(ranks), f"{distinct:.1f}", f"{by_expert:.2f}", f"{by_pair:.2f}"))
    print_table(("rows", "ranks", "distinct experts", "experts", "pairs"), lines)


if __name__ == "__main__":
    main()
