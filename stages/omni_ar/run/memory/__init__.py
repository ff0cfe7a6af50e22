"""The stage's paged memory: blocks, the prefixes they hold, and payload in them that consumers still need."""

from omni_ar.run.memory.pool import NULL_BLOCK, BlockPool
from omni_ar.run.memory.prefix import PrefixKeys
from omni_ar.run.memory.reclaim import Reclaimer
from omni_ar.run.memory.spill import Spiller
from omni_ar.run.memory.table import BlockTable, Lent

__all__ = ["NULL_BLOCK", "BlockPool", "BlockTable", "Lent", "PrefixKeys", "Reclaimer", "Spiller"]
