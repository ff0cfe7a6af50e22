"""The nodes and edges of a pipeline."""

from typing import Literal

import msgspec

from omni.errors import quoted

EDGES = "edges"
"""The first part of the paths of edges' settings; no stage may have this name."""
Memory = Literal["device", "host"]
"""The place of a payload's tensors at the consumer."""


MOST_RANKS = 64
"""The largest number of ranks of a stage (`Stage.ranks`)."""
MOST_POOL_BYTES = 2**40
"""Maximum pool of an edge: a larger number is a typing error."""


class Stage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model in the graph.

    name: unique in the pipeline; the first part of every override path.
    kind: a registered stage kind (`"ar"`, `"encoder"`, `"vocoder"`, ...).
    model: `"module:function"`; the kind specifies the function's type. None for a kind whose stages have no model.
    options: an instance of the kind's options struct, with the family's defaults.
    priority: stream priority hint; lower values run first where the device supports it.
    place: the device of the stage, `"cuda:1"`; several, as a list or separated by commas, for a replica on each; `"cpu/2"` for a
        further process on a device. None uses the engine's device. Users set it as `"name.place"`.
    tensor_parallel, pipeline_parallel: number of shards of each layer, and of layer ranges. Their product is the number of
        ranks, at most 64. With more than 1, `place` names so many places: those of the ranks, in order. A stage whose kind is
        not cut by tensors has replicas there. Users set them as `"name.tensor_parallel"` and `"name.pipeline_parallel"`.
    expert_parallel: whether the experts of a mixture are divided among the ranks with shards of a layer, instead of the width of
        each expert. Users set it as `"name.expert_parallel"`.
    dtype: of weights and activations, `"float32"`, `"bfloat16"` or `"float16"`; None uses the engine's. Users set it as
        `"name.dtype"`, unless the options have a field of that name.
    """

    name: str
    kind: str
    model: str | None = None
    options: msgspec.Struct
    priority: int = 0
    dtype: str | None = None
    place: str | tuple[str, ...] | None = None
    tensor_parallel: int = 1
    expert_parallel: bool = False
    pipeline_parallel: int = 1

    @property
    def ranks(self) -> int:
        """Number of engines that run the stage together."""
        return self.tensor_parallel * self.pipeline_parallel


class EdgeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of an edge that users set, as `"edges.producer-consumer.credit"`.

    credit: payloads of one request that may be on their way or waiting at the consumer before the producer pauses the
        request; it resumes when half of them are left.
    connector: its registered name; None selects one by the places of the stages.
    pool_bytes: memory for payloads under way between two processes, 64 KiB to 1 TiB.
    """

    connector: str | None = None
    credit: int = 64
    pool_bytes: int = 256 * 2**20

    def __post_init__(self) -> None:
        bounds: tuple[tuple[str, object, int, int], ...] = (
            ("credit", self.credit, 1, 2**31),
            ("pool_bytes", self.pool_bytes, 2**16, MOST_POOL_BYTES),
        )
        for name, value, least, most in bounds:
            if not isinstance(value, int) or not least <= value <= most:
                raise ValueError(f"{name} must be at least {least}, at most {most:,}, not {quoted(value)}")


class Edge(EdgeSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A connection: payloads of one stage become inputs of another.

    adapter: `"module:factory"`, an `AdapterFactory`.
    keyed: whether tensors carry a content key, so that a consumer can cache prefixes past them.
    memory: `"device"`, tensors as produced, page slices not gathered; or `"host"`, copied into host memory as whole
        tensors.
    hidden_states: whether `omni.payload.RequestHiddenStates` of the producer pass the edge too, once for each request; the
        producer's option `hidden_layers` says of which layers.
    """

    producer: str
    consumer: str
    adapter: str = "omni.pipeline.adapter:PassThrough"
    keyed: bool = False
    memory: Memory = "device"
    hidden_states: bool = False

    @property
    def name(self) -> str:
        return f"{self.producer}->{self.consumer}"

    @property
    def setting(self) -> str:
        """The path of its settings."""
        return f"{EDGES}.{self.producer}-{self.consumer}"


class PipelineOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named output of a stage that users can request.

    modality: `"text"` is decoded, `"audio"` is sound, `"codes"` are codec frames; any other is given as it is.
    stage: the producer.
    adapter: `"module:factory"`, an `AdapterFactory` that selects and converts the stage's payloads, whose tensors are
        copied into host memory. None gives the payloads without tensors, as they are.
    default: whether a request that names no modalities gets it.
    hidden_states: whether it gives the stage's `omni.payload.RequestHiddenStates`, and nothing else.
    """

    modality: str
    stage: str
    adapter: str | None = None
    default: bool = True
    hidden_states: bool = False

    @property
    def route(self) -> Edge | None:
        """The way of its payloads to the user, as an edge; None if they are host data only."""
        if self.adapter is None and not self.hidden_states:
            return None
        adapter = self.adapter or "omni.pipeline.adapter:PassThrough"
        user = f"user:{self.modality}"
        return Edge(
            producer=self.stage, consumer=user, adapter=adapter, memory="host", hidden_states=self.hidden_states
        )


def hidden_states_of(stage: str) -> str:
    """The modality of a stage's hidden states, of every stage that keeps some."""
    return f"{stage}.hidden_states"
