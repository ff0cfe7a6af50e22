"""What plugins register: names, and where to import the rest from. Torch-free, so that entry modules load fast."""

import msgspec


class ModelFamily(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model family.

    name: unique among families.
    model_types: values of `model_type` in config.json that this family serves.
    pipeline: `"module:function"`, called with an `omni.checkpoint.Checkpoint`, returns a `Pipeline`.
    files: what a checkpoint needs beside JSON, tokenizer files and safetensors, by name or pattern (`"voices/*.pt"`): fetched with
        them where the checkpoint is on a hub.
    tiny: `"module:function"`, called with a directory, which is empty, and a keyword `seed`; writes a tiny
        random checkpoint there. None: there is none.
    """

    name: str
    model_types: tuple[str, ...]
    pipeline: str
    files: tuple[str, ...] = ()
    tiny: str | None = None


class StageKindEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of stage. kind: `"module:attribute"`, called without arguments, returns an `omni.stage.StageKind`."""

    name: str
    kind: str


class ConnectorEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A connector. connector: `"module:attribute"`, called without arguments, returns an `omni.connector.Connector`."""

    name: str
    connector: str


class LogitsProcessorEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A logits processor. processor: `"module:attribute"`, called without arguments, once for each autoregressive stage; returns an
    `omni_ar.processors.LogitsProcessor` or `HistoryProcessor`."""

    name: str
    processor: str
