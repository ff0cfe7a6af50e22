"""The nodes and arrows of a pipeline."""

import msgspec


class Stage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model in the graph.

    name: unique in the pipeline; the first part of every override path.
    kind: a registered stage kind (`"ar"`, `"encoder"`, `"vocoder"`, ...).
    model: `"module:function"`; the kind says what the function takes and returns.
    options: an instance of the kind's options struct: the family's defaults.
    priority: stream priority hint; negative runs first where the device can.
    """

    name: str
    kind: str
    model: str
    options: msgspec.Struct
    priority: int = 0


class Edge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one stage produces becomes another's input. adapter: `"module:factory"`, an `AdapterFactory`."""

    producer: str
    consumer: str
    adapter: str = "omni.adapter:PassThrough"

    @property
    def name(self) -> str:
        return f"{self.producer}->{self.consumer}"


class Output(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user can ask for (`"text"`, `"audio"`) and the stage whose host payloads it is made of."""

    modality: str
    stage: str
