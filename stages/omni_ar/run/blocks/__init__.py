"""The stage's paged memory: blocks, the cached prefixes in them, and their payload that consumers still need."""

from omni_ar.run.blocks.pool import NULL_BLOCK, BlockPool, BlockTable, PrefixKeys
from omni_ar.run.blocks.reclaim import Reclaimer, Spiller

__all__ = ["NULL_BLOCK", "BlockPool", "BlockTable", "PrefixKeys", "Reclaimer", "Spiller"]
