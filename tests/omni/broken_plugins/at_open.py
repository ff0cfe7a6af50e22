"""Faults for which a model is not opened."""

from omni.errors import CheckpointError, ConfigError, OmniError, PluginError
from tests.omni.broken_plugins.fault import Fault

_BUILD = "def pipeline(checkpoint: Checkpoint) -> Pipeline:\n"


def _open(
    name: str, kind: type[OmniError], file: str, old: str, new: str, *says: str, package: str = "plain_talk"
) -> Fault:
    return Fault(name, "open", kind, file, old, new, says, package)


_STAGE = 'Stage(name="writer", kind="write", model="plain_talk.stages:build", options=Options())'


def _pipeline(name: str, line: str, *says: str) -> Fault:
    """A line above the graph that raises."""
    return _open(name, PluginError, "pipeline.py", _BUILD, f"{_BUILD}    {line}  # here\n", *says, _TALK)


def _graph(name: str, old: str, new: str, *says: str) -> Fault:
    return _open(name, PluginError, "pipeline.py", old, new, "families.talk.pipeline: ", *says, _TALK, _IN_FUNCTION)


_TALK = "correct plain_talk.pipeline:pipeline"
_IN_FUNCTION = "(plugin plain-talk-plugin, "

OPEN = (
    _pipeline("an attribute that is misspelled", "checkpoint.confg", "families.talk.pipeline: AttributeError", "confg"),
    _pipeline(
        "a method that is misspelled", "checkpoint.config.gett('width')", "families.talk.pipeline: AttributeError"
    ),
    _pipeline("a name that is misspelled", "Sage()", "families.talk.pipeline: NameError: name 'Sage' is not defined"),
    _pipeline("an argument that is misspelled", "Stage(nam='x')", "families.talk.pipeline: TypeError", "'nam'"),
    _pipeline("a pipeline that exits", "raise SystemExit(3)", "families.talk.pipeline: SystemExit: 3"),
    _pipeline("a pipeline that fails an assertion", "assert not checkpoint, 'odd'", "AssertionError: odd"),
    _open(
        "a key that config.json lacks",
        CheckpointError,
        "pipeline.py",
        _BUILD,
        f"{_BUILD}    checkpoint.config['width']  # here\n",
        "config.json: does not fit family 'talk': KeyError: 'width'",
        _TALK,
    ),
    _graph(
        "options that are None",
        _STAGE,
        _STAGE.replace("Options()", "None"),
        "pipeline.stages.writer.options is None: give the options of kind 'write', a frozen msgspec.Struct",
    ),
    _graph(
        "options that are a dict",
        _STAGE,
        _STAGE.replace("Options()", "{}"),
        "pipeline.stages.writer.options is a dict",
    ),
    _graph(
        "options that are their class",
        _STAGE,
        _STAGE.replace("Options()", "Options"),
        "pipeline.stages.writer.options is a StructMeta",
    ),
    _graph(
        "options that are not frozen",
        _STAGE,
        _STAGE.replace("Options()", "msgspec.defstruct('Loose', [])()"),
        "pipeline.stages.writer.options is a Loose that is not frozen",
    ),
    _graph("a stage without a name", _STAGE, _STAGE.replace('"writer"', "None"), "pipeline.stages[0].name is None"),
    _graph("a stage that is its name", _STAGE, '"writer"', "pipeline.stages[0] is a str: give Stage(...)"),
    _graph(
        "a place that is a number",
        _STAGE,
        _STAGE.replace("options", "place=1, options"),
        "pipeline.stages.writer.place is 1: Expected `str | array | null`, got `int`",
    ),
    _graph(
        "a model that is the function",
        _STAGE,
        _STAGE.replace('"plain_talk.stages:build"', "pipeline"),
        "pipeline.stages.writer.model is <function pipeline",
    ),
    _graph(
        "one output that is not in a tuple",
        'outputs=(PipelineOutput(modality="text", stage="writer"), PipelineOutput(modality="audio", stage="singer")),',
        'outputs=PipelineOutput(modality="text", stage="writer"),',
        "pipeline.outputs is a PipelineOutput: give a tuple of PipelineOutput",
    ),
    _graph(
        "a keyed that is text",
        'adapter="plain_talk.pipeline:Sung"',
        'adapter="plain_talk.pipeline:Sung", keyed="yes"',
        "pipeline.edges[0].keyed is 'yes': Expected `bool`",
    ),
    _open(
        "a pipeline that raises and reads no file",
        PluginError,
        "pipeline.py",
        _BUILD,
        f"{_BUILD}    1 / 0  # here\n",
        "families.talk.pipeline: ZeroDivisionError",
        _TALK,
    ),
    *(
        _open(
            f"a pipeline that raises after it has read {what}",
            CheckpointError,
            "pipeline.py",
            _BUILD,
            f"{_BUILD}    {what}; 1 / 0  # here\n",
            "config.json: does not fit family 'talk': ZeroDivisionError",
            _TALK,
        )
        for what in ("checkpoint.config", "checkpoint.generation_config", "checkpoint.path")
    ),
    _open(
        "a pipeline that returns None",
        PluginError,
        "pipeline.py",
        _BUILD,
        "def pipeline(checkpoint):  # here\n    return None\n",
        "families.talk.pipeline: gave None",
        "return an omni.pipeline.pipeline.Pipeline",
    ),
    _open(
        "a pipeline that takes nothing",
        PluginError,
        "pipeline.py",
        _BUILD,
        "def pipeline() -> Pipeline:  # here\n",
        "families.talk.pipeline: TypeError: pipeline() takes 0 positional arguments",
        "correct plain_talk.pipeline:pipeline",
    ),
    _open(
        "a pipeline that is not there",
        ConfigError,
        "pipeline.py",
        _BUILD,
        "def pipelin(checkpoint: Checkpoint) -> Pipeline:\n",
        "families.talk.pipeline: plain_talk.pipeline has no 'pipeline'",
        "did you mean 'pipelin'?",
        "plain_talk/pipeline.py",
    ),
    _open(
        "a module that cannot be imported",
        PluginError,
        "pipeline.py",
        _BUILD,
        f"raise OSError('no licence')  # here\n{_BUILD}",
        "families.talk.pipeline: importing plain_talk.pipeline failed: OSError: no licence",
    ),
    _open(
        "a kind that is not a kind",
        PluginError,
        "stages.py",
        'class WriterKind:\n    name = "write"',
        'class WriterKind:  # here\n    title = "write"',
        "kinds.write: gave a WriterKind without name",
        "return an omni.stage.base.StageKind",
    ),
    _open(
        "a kind that raises",
        PluginError,
        "stages.py",
        "class WriterKind:\n",
        "class WriterKind:\n    def __init__(self):\n        raise OSError('no')  # here\n\n",
        "kinds.write: OSError: no",
        "correct plain_talk.stages:WriterKind",
    ),
    _open(
        "a load that returns None",
        PluginError,
        "stages.py",
        "        return PlainStage(Writer(context.stage.name, build(context)))",
        "        Writer(context.stage.name, build(context))",
        "writer.load: gave None",
        "return an omni.stage.base.LoadedStage",
        "plugin plain-talk-plugin, ",
    ),
    _open(
        "a load that returns its worker",
        PluginError,
        "stages.py",
        "        return PlainStage(Writer(context.stage.name, build(context)))",
        "        return Writer(context.stage.name, build(context))",
        "writer.load: gave a Writer without footprint, measure, start",
    ),
    _open(
        "a load that raises",
        CheckpointError,
        "stages.py",
        "        return PlainStage(Writer(context.stage.name, build(context)))",
        "        raise KeyError('width')  # here",
        "stage 'writer' cannot be built from it: KeyError: 'width'",
        "correct plain_talk.stages:build",
    ),
    _open(
        "a load that raises an error of its own",
        PluginError,
        "stages.py",
        "        return PlainStage(Writer(context.stage.name, build(context)))",
        "        raise OSError('no file')  # here",
        "pipeline.stages.writer.model: cannot be built: OSError: no file",
        "correct plain_talk.stages:build",
    ),
    _open(
        "a load that takes nothing",
        PluginError,
        "stages.py",
        "    def load(self, context: StageContext) -> PlainStage:\n        return PlainStage(Writer(",
        "    def load(self):  # here\n        context = None\n        return PlainStage(Writer(",
        "pipeline.stages.writer.model: cannot be built: TypeError",
        "takes 1 positional argument",
    ),
    _open(
        "a worker that is not a worker",
        PluginError,
        "stages.py",
        "        return PlainStage(Writer(context.stage.name, build(context)))",
        "        return PlainStage(build(context))",
        "writer.start: gave a Model without",
        "return an omni.stage.base.StageWorker",
    ),
    _open(
        "a worker that is abstract",
        PluginError,
        "stages.py",
        "    def resume(self, request: Record) -> None:\n        pass\n\n",
        "",
        "pipeline.stages.writer.model: cannot be built",
        "abstract",
        "resume",
        "plugin plain-talk-plugin, ",
    ),
    _open(
        "a front end that is abstract",
        PluginError,
        "pipeline.py",
        "    def prepare(self,",
        "    def prepares(self,",
        "pipeline.frontend: plain_talk.pipeline:Reader is an abstract class: it lacks prepare",
        "plugin plain-talk-plugin, ",
        "implement prepare",
    ),
    _open(
        "a front end that raises",
        PluginError,
        "pipeline.py",
        "        self.path = checkpoint.path\n",
        "        raise KeyError('tokens')  # here\n",
        "pipeline.frontend: KeyError: 'tokens'",
        "correct plain_talk.pipeline:Reader",
    ),
    _open(
        "a front end without a decoder",
        ConfigError,
        "pipeline.py",
        "        return Letters()",
        "        return None",
        "pipeline.frontend: has no text decoder, but stage 'writer' writes text",
        "plugin plain-talk-plugin, ",
        "make one in Frontend.text_decoder",
    ),
    _open(
        "a decoder that cannot be made",
        PluginError,
        "pipeline.py",
        "        return Letters()",
        "        return Lettres()  # here",
        "pipeline.frontend: NameError",
        "correct plain_talk.pipeline:Reader",
    ),
    _open(
        "voices that are a list",
        ConfigError,
        "pipeline.py",
        "class Reader(Frontend):\n",
        "class Reader(Frontend):  # here\n    voices = ['one']\n\n",
        "pipeline.frontend.voices: is ['one']",
        "give a tuple",
    ),
    _open(
        "a front end that is a function of nothing",
        PluginError,
        "pipeline.py",
        "class Reader(Frontend):\n    def __init__(self, checkpoint: Checkpoint) -> None:\n        self.path = checkpoint.path\n",
        "class Reader(Frontend):  # here\n    def __init__(self):\n        pass\n",
        "pipeline.frontend: TypeError",
    ),
    _open(
        "a front end that exits",
        PluginError,
        "pipeline.py",
        "        self.path = checkpoint.path\n",
        "        raise SystemExit(3)  # here\n",
        "pipeline.frontend: SystemExit: 3",
    ),
    _open(
        "a kind whose options are an object",
        PluginError,
        "stages.py",
        'class WriterKind:\n    name = "write"\n    options = Options\n',
        'class WriterKind:  # here\n    name = "write"\n    options = Options()\n',
        "kinds.write.options: is Options(), not a class",
        "name the class of the stages' options",
    ),
    _open(
        "a footprint that is None",
        PluginError,
        "stages.py",
        "        return PlainStage(Writer(context.stage.name, build(context)))",
        "        class Heavy(PlainStage):  # here\n            pass\n\n"
        "        return Heavy(Writer(context.stage.name, build(context)), None)",
        "writer.footprint: gave None",
        "return an omni.stage.base.Footprint",
    ),
    _open(
        "a worker whose boxes are lists",
        PluginError,
        "stages.py",
        "        super().__init__(name)\n",
        "        super().__init__(name)\n        self.inbox = []\n",
        "writer.start: gave a Writer whose inbox is a list",
        "plugin plain-talk-plugin, ",
    ),
    _open(
        "an edge to nowhere",
        ConfigError,
        "pipeline.py",
        'consumer="singer"',
        'consumer="sinker"',
        "pipeline.edges[0].consumer: 'sinker' is not a stage (plugin plain-talk-plugin, ",
        "pipeline.py:",
        "use one of writer, singer",
    ),
    _open(
        "options of another type",
        ConfigError,
        "pipeline.py",
        'Stage(name="writer", kind="write", model="plain_talk.stages:build", options=Options())',
        'Stage(name="writer", kind="write", model="plain_talk.stages:build", options=Line(text=""))',
        "pipeline.stages.writer.options: is a Line",
        "kind 'write' takes Options",
    ),
    _open(
        "a kind that nobody brings",
        PluginError,
        "pipeline.py",
        'kind="write"',
        'kind="writes"',
        "there is no stage kind 'writes'",
        "did you mean 'write'?",
    ),
    _open(
        "an adapter that is not there",
        ConfigError,
        "pipeline.py",
        'adapter="plain_talk.pipeline:Sung"',
        'adapter="plain_talk.pipeline:Sang"',
        "pipeline.edges.writer->singer.adapter",
        "did you mean 'Sung'?",
    ),
)
