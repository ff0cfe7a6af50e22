"""Faults for which a plugin is not loaded."""

from omni.errors import PluginError
from tests.omni.broken_plugins.fault import Fault

_ENTRIES = 'return [ModelFamily(name="talk", model_types=("talk",), pipeline="plain_talk.pipeline:pipeline")]'


def _load(name: str, old: str | None, new: str, *says: str) -> Fault:
    return Fault(name, "load", PluginError, "plugin.py", old, new, says)


LOAD = (
    _load(
        "one entry instead of a list",
        f"@hookimpl\ndef omni_model_families() -> Sequence[ModelFamily]:\n    {_ENTRIES}",
        f"@hookimpl  # here\ndef omni_model_families():\n    {_ENTRIES.replace('[', '').replace(']', '')}",
        "omni_model_families: returned one ModelFamily, not a list",
        "return a list: [ModelFamily(...)]",
    ),
    _load(
        "None instead of a list",
        f"@hookimpl\ndef omni_model_families() -> Sequence[ModelFamily]:\n    {_ENTRIES}",
        "@hookimpl  # here\ndef omni_model_families():\n    pass",
        "omni_model_families: returned None",
        "return a list",
    ),
    _load(
        "an entry of another kind",
        f"@hookimpl\ndef omni_model_families() -> Sequence[ModelFamily]:\n    {_ENTRIES}",
        '@hookimpl  # here\ndef omni_model_families():\n    return ["talk"]',
        "omni_model_families: expected ModelFamily entries, got 'talk'",
    ),
    _load("a hook that raises", _ENTRIES, "return 1 / 0  # here", "omni_model_families: ZeroDivisionError"),
    _load(
        "a misspelled hook",
        "@hookimpl\ndef omni_model_families() -> Sequence[ModelFamily]:",
        "@hookimpl  # here\ndef omni_model_familys():",
        "plain_talk.plugin.omni_model_familys: is not a hook",
        "did you mean 'omni_model_families'?",
    ),
    _load(
        "a module without hooks",
        None,
        "",
        "plain_talk.plugin: has no implementation of a hook (/",
        "plain_talk/plugin.py)",
        "mark a function with @omni.hookimpl",
    ),
    _load(
        "a hook that is not marked",
        "@hookimpl\ndef omni_stage_kinds()",
        "def omni_stage_kinds()",
        "plain_talk.plugin.omni_stage_kinds: is not marked as an implementation (/",
        "plain_talk/plugin.py)",
        "put @omni.hookimpl above it",
    ),
    _load(
        "model types that are text",
        'model_types=("talk",)',
        'model_types="talk"',
        "ModelFamily 'talk'.model_types",
        "write ('talk',)",
    ),
    _load(
        "a path without an attribute",
        'pipeline="plain_talk.pipeline:pipeline"',
        'pipeline="plain_talk.pipeline"',
        "ModelFamily 'talk'.pipeline: 'plain_talk.pipeline' is not an import path",
        'write "module:attribute"',
    ),
    _load(
        "a path of a kind without an attribute",
        'kind="plain_talk.stages:WriterKind"',
        'kind="plain_talk/stages.py:WriterKind"',
        "StageKindEntry 'write'.kind: 'plain_talk/stages.py:WriterKind' is not an import path",
    ),
    _load(
        "files that are text",
        'model_types=("talk",)',
        'model_types=("talk",), files="voices.pt"',
        "ModelFamily 'talk'.files: 'voices.pt' does not fit: Expected `array`, got `str`",
    ),
    _load(
        "a hook with an argument",
        "def omni_model_families() ->",
        "def omni_model_families(checkpoint) ->",
        "omni_model_families",
        "checkpoint",
    ),
    _load(
        "a hook that yields",
        _ENTRIES,
        _ENTRIES.replace("return", "yield from"),
        "omni_model_families: returned one generator, not a list",
    ),
    _load(
        "an entry module that exits",
        "from omni import hookimpl\n",
        "from omni import hookimpl\n\nraise SystemExit(3)\n",
        "SystemExit: 3",
        "plain_talk/plugin.py",
    ),
    _load(
        "model types that are empty",
        'model_types=("talk",)',
        "model_types=()",
        "ModelFamily 'talk'.model_types: is empty, so that no checkpoint is of this family",
        'write ("my_model",)',
    ),
    _load(
        "a model type that is listed twice",
        'model_types=("talk",)',
        'model_types=("talk", "talk")',
        "ModelFamily 'talk'.model_types: ('talk', 'talk') names one twice",
    ),
    _load(
        "a name of two lines",
        'name="talk"',
        'name="ta\\nlk"',
        "ModelFamily 'ta\\nlk'.name: is not a name; give printable text",
    ),
    _load("a name that is a page", 'name="talk"', 'name="t" * 101', "give printable text of at most 100 characters"),
    _load(
        "an entry that is listed twice",
        f"@hookimpl\ndef omni_model_families() -> Sequence[ModelFamily]:\n    {_ENTRIES}",
        f"@hookimpl  # here\ndef omni_model_families():\n    {_ENTRIES} * 2",
        "omni_model_families: lists 'talk' 2 times",
        "list each entry once",
    ),
    _load("an unknown field of an entry", 'name="write", kind', 'name="write", speed=1, kind', "speed"),
)
