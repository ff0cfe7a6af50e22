"""Drafts from the row's own text: the tokens that followed its newest ones when they last occurred.

Shape legend: R rows of the batch, N rows of the stage, L tokens of a row, K drafts.
"""

from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_ar.kernels.ngram import reference

__all__ = ["propose_ngrams"]


def propose_ngrams(
    text_NL: Tensor,
    rows_R: Tensor,
    length_N: Tensor,
    *,
    fewest: int,
    most: int,
    vocab: int,
    drafts_NK: Tensor,
    proposed_N: Tensor,
) -> None:
    """Writes each row's drafts and their number: K, or fewer before an id that the vocabulary lacks, or 0.

    A position matches if the tokens before it equal the newest ones, at least `fewest`, at most `most`. The longest match is taken,
    of several the latest. The drafts are the tokens from there on; after the newest token they repeat from that position.

    text_NL: int32; entries from a row's newest token on are not read. length_N: int64, index of the newest token. drafts_NK: int64.
    proposed_N: int64.
    """
    if not runs_kernel(text_NL):
        return reference.propose_ngrams(text_NL, rows_R, length_N, fewest, most, vocab, drafts_NK, proposed_N)
    from omni_ar.kernels.ngram import kernel

    return kernel.propose_ngrams(text_NL, rows_R, length_N, fewest, most, vocab, drafts_NK, proposed_N)
