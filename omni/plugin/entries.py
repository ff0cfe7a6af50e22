"""Entries that plugins register: names and import paths. Torch-free, so that entry modules load fast."""

import msgspec


class ModelFamily(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model family.

    name: unique among families.
    model_types: values of `model_type` in config.json that this family serves.
    pipeline: `"module:function"`, called with an `omni.checkpoint.Checkpoint`, returns a `Pipeline`.
    files: names or patterns (`"voices/*.pt"`) of files that a checkpoint needs beside JSON, tokenizer files and
        safetensors; they are downloaded too.
    tiny: `"module:function"`, called with an empty directory and a keyword `seed`; writes a tiny random checkpoint
        there. None if the family has none.
    """

    name: str
    model_types: tuple[str, ...]
    pipeline: str
    files: tuple[str, ...] = ()
    tiny: str | None = None


class PipelineExtension(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change to the pipelines of other families, which users choose by name.

    name: unique among extensions.
    extend: `"module:function"`, `(Pipeline) -> Pipeline`; see `Pipeline.extended`.
    families: names of the families whose pipelines it can change; empty for any.
    """

    name: str
    extend: str
    families: tuple[str, ...] = ()


class StageKindEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of stage. kind: `"module:attribute"`, called without arguments, returns an `omni.stage.StageKind`."""

    name: str
    kind: str


class ConnectorEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A connector. connector: `"module:attribute"`, called without arguments, returns an `omni.connector.Connector`."""

    name: str
    connector: str


class LogitsProcessorEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A logits processor. processor: `"module:attribute"`, called without arguments, once for each autoregressive
    stage; returns an `omni_ar.processors.LogitsProcessor` or `HistoryProcessor`."""

    name: str
    processor: str


class DrafterEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A drafter. drafter: `"module:attribute"`, called once for each stage that selects it, with the stage's
    `drafter_args` and an `omni_ar.drafters.DraftSetup`; returns an `omni_ar.drafters.Drafter`."""

    name: str
    drafter: str
