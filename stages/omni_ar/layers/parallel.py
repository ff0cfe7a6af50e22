"""The partition that layers are built in. A rank holds the layers of one layer range (pipeline parallelism; Huang et al., 2019,
arXiv:1811.06965), and of each of them a shard (tensor parallelism; Shoeybi et al., 2019, arXiv:1909.08053). Without a partition, it
holds everything.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from omni.checkpoint import Cut
from omni.errors import ConfigError
from omni.parallel import Communicator


@dataclass(frozen=True, slots=True)
class LayerRange:
    """The layer range of a rank. stage: its name, for errors. position: 0 for the range with the first layers. size: number of
    ranges. layers: number of layers of each range; empty to divide them evenly."""

    stage: str
    position: int
    size: int
    layers: tuple[int, ...] = ()

    @property
    def last(self) -> bool:
        return self.position == self.size - 1

    def held(self, num_layers: int) -> range:
        """Returns the indexes of the range's layers. Raises ConfigError if there are not as many layers as the ranges need."""
        layers, option = self.layers, f"{self.stage}.pipeline_layers"
        if not layers:
            if num_layers < self.size:
                problem = f"is {self.size}, and the model has {num_layers} layers"
                raise ConfigError(
                    f"{self.stage}.pipeline_parallel", problem, "use at most one layer range for each layer"
                )
            # The last range also computes logits and samples, so the ranges with one more layer are others.
            each, more = divmod(num_layers, self.size)
            layers = tuple(each + (index < more) for index in range(self.size))
        if len(layers) != self.size or sum(layers) != num_layers or min(layers) < 1:
            wanted = f"{self.size} numbers from 1 whose sum is the model's {num_layers} layers"
            raise ConfigError(option, f"is {list(layers)}", f"give {wanted}, or leave it out")
        first = sum(layers[: self.position])
        return range(first, first + layers[self.position])


@dataclass(frozen=True, slots=True)
class _Partition:
    communicator: Communicator | None = None
    layer_range: LayerRange | None = None
    expert_parallel: bool = False


_WHOLE = _Partition()
_partition: ContextVar[_Partition] = ContextVar("partition", default=_WHOLE)


@contextmanager
def partitioned(
    communicator: Communicator | None, layer_range: LayerRange | None = None, *, expert_parallel: bool = False
) -> Iterator[None]:
    """While entered, layers that this thread builds hold the shard of the communicator's rank, and `DecoderLayers` the layers of
    the layer range. None: layers are whole, and all of them are held. expert_parallel: whether the experts of a mixture are divided
    among the communicator's ranks, instead of the width of each (`Stage.expert_parallel`)."""
    token = _partition.set(_Partition(communicator, layer_range, expert_parallel))
    try:
        yield
    finally:
        _partition.reset(token)


@contextmanager
def whole() -> Iterator[None]:
    """While entered, the layers that this thread builds are whole on every rank, and call no collectives."""
    with partitioned(None):
        yield


def communicator() -> Communicator | None:
    """The communicator of the partition in which layers are built now; None if they are whole."""
    return _partition.get().communicator


def layer_range() -> LayerRange | None:
    """The layer range that is built now; None for all layers."""
    return _partition.get().layer_range


def held_layers(num_layers: int) -> range:
    """The indexes of this rank's layers, of a model with `num_layers`."""
    own = layer_range()
    return range(num_layers) if own is None else own.held(num_layers)


def width_cut(size: int, dim: int) -> Cut | None:
    """This rank's shard of a width of `size`, dimension `dim` of its weight; None if the layer is whole: without a partition, or if
    the ranks do not divide the width."""
    group = communicator()
    if group is None or size % group.size:
        return None
    share = size // group.size
    return Cut(dim, group.rank * share, (group.rank + 1) * share, size)


def held_experts(num_experts: int) -> range | None:
    """The experts of a mixture that this rank holds whole; None if they are not divided: without a partition by experts, or if the
    ranks do not divide their number."""
    shard = width_cut(num_experts, 0) if _partition.get().expert_parallel else None
    return range(shard.start, shard.stop) if shard is not None else None


@dataclass(frozen=True, slots=True)
class HeadShard:
    """The heads of an attention layer that a rank holds: the first one, their number, and the number of all ranks, for query heads
    and for key and value heads."""

    first_head: int
    num_heads: int
    all_heads: int
    first_kv_head: int
    num_kv_heads: int
    all_kv_heads: int

    @property
    def is_cut(self) -> bool:
        return self.num_heads < self.all_heads

    @property
    def heads(self) -> slice:
        return slice(self.first_head, self.first_head + self.num_heads)

    def heads_cut(self, dim: int, head_dim: int = 1) -> Cut:
        """This rank's query heads in a dimension that holds `head_dim` numbers of each."""
        stop = self.first_head + self.num_heads
        return Cut(dim, self.first_head * head_dim, stop * head_dim, self.all_heads * head_dim)

    def kv_heads_cut(self, dim: int, head_dim: int) -> Cut:
        """As `heads_cut`, of its key and value heads."""
        stop = self.first_kv_head + self.num_kv_heads
        return Cut(dim, self.first_kv_head * head_dim, stop * head_dim, self.all_kv_heads * head_dim)


def head_shard(num_heads: int, num_kv_heads: int) -> HeadShard:
    """Returns the heads that this rank holds. With fewer key and value heads than ranks, several ranks hold the same one. The layer
    is whole where the ranks do not divide the query heads, or where neither the ranks nor the key and value heads divide the
    other."""
    group = communicator()
    if group is None or num_heads % group.size or (num_kv_heads % group.size and group.size % num_kv_heads):
        return HeadShard(0, num_heads, num_heads, 0, num_kv_heads, num_kv_heads)
    heads, kv_heads = num_heads // group.size, max(num_kv_heads // group.size, 1)
    first, first_kv = group.rank * heads, group.rank * num_kv_heads // group.size
    return HeadShard(first, heads, num_heads, first_kv, kv_heads, num_kv_heads)
