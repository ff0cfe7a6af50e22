"""Faults of a pipeline's parts and of the code that they name, for which a model is not opened."""

from omni.errors import ConfigError, OmniError, PluginError
from omni.stage import InsufficientMemoryError
from tests.omni.broken_plugins.fault import Fault

_PLUGIN = "(plugin plain-talk-plugin, "
_IN_PIPELINE = "/plain_talk/pipeline.py:15)"
"""The line of the pipeline function."""
_SINGER = 'Stage(name="singer", kind="sing", model="plain_talk.stages:build", options=Options()),'
_EDGE = 'edges=(Edge(producer="writer", consumer="singer", adapter="plain_talk.pipeline:Sung", connector="wire"),),'
_OUTPUTS = (
    'outputs=(PipelineOutput(modality="text", stage="writer"), PipelineOutput(modality="audio", stage="singer")),'
)
_LOAD = "        return PlainStage(Singer(context.stage.name, build(context)))"
_OPTIONS = '    """None."""\n'
_LETTERS = "        return Letters()"
_READER = "class Reader(Frontend):\n"


def _pipeline(name: str, kind: type[OmniError], old: str, new: str, *says: str) -> Fault:
    return Fault(name, "open", kind, "pipeline.py", old, new, says)


def _graph(name: str, old: str, new: str, *says: str) -> Fault:
    """Found in the checked graph: the error names the pipeline function."""
    return _pipeline(name, ConfigError, old, new, *says, _PLUGIN, _IN_PIPELINE)


def _reader(name: str, line: str, *says: str) -> Fault:
    return _pipeline(name, ConfigError, _READER, f"class Reader(Frontend):  # here\n    {line}\n\n", *says)


def _stages(name: str, kind: type[OmniError], old: str, new: str, *says: str) -> Fault:
    return Fault(name, "open", kind, "stages.py", old, new, says)


def _refusing(name: str, line: str, value: float, *says: str) -> Fault:
    """The options refuse a setting of the user in this way."""
    new = f"{_OPTIONS}    volume: float = 1.0\n\n    def __post_init__(self):\n        {line}  # here\n"
    settings = (("singer.volume", value),)
    start = "singer.volume: Options cannot be made with this value: "
    return Fault(name, "open", ConfigError, "stages.py", _OPTIONS, new, (start, *says), settings=settings)


def _credit(name: str, value: str) -> Fault:
    return _pipeline(
        name,
        PluginError,
        _EDGE,
        f"edges=(Edge(producer='writer', consumer='singer', credit={value}),),  # here",
        f"families.talk.pipeline: ValueError: credit must be at least 1, at most 2,147,483,648, not {value}",
        "correct plain_talk.pipeline:pipeline",
    )


def _full_memory(name: str, line: str) -> Fault:
    return _stages(
        name,
        InsufficientMemoryError,
        _LOAD,
        f"        {line}  # here\n{_LOAD}",
        "pipeline.stages.singer: the host has insufficient memory for weights and buffers of stage 'singer'",
        "while its footprint was measured without a device",
        "create tensors on the device of the StageContext",
    )


_TALKER = 'model="plain_tts.talker:build", options=options)'


def _talker(name: str, new: str, *says: str) -> Fault:
    """Found as the stage is loaded: the error names the pipeline function too."""
    says = (*says, "(plugin plain-tts-plugin, ", "/plain_tts/pipeline.py:11)")
    return Fault(name, "open", ConfigError, "pipeline.py", _TALKER, new, says, "plain_tts")


GRAPH = (
    _talker(
        "a model that is missing",
        "options=options)",
        "pipeline.stages.talker.model: is missing (plugin",
        "kind 'ar' takes a function that returns a ArModel",
    ),
    _talker(
        "layers that are not there",
        'model="plain_tts.talker:build", options=ArOptions(sampling=sampling, hidden_layers=(99,)))',
        "talker.hidden_layers: [99] are not distinct layers of this model (plugin",
        "use numbers from 0",
    ),
    _pipeline(
        "a front end that is not a function",
        ConfigError,
        '"plain_talk.pipeline:Reader"',
        '"plain_talk.pipeline:__name__"',
        "pipeline.frontend: plain_talk.pipeline:__name__ is a str, which cannot be called (plugin",
        "name a class or a function that takes a Checkpoint",
        _IN_PIPELINE,
    ),
    _credit("a credit of nothing", "0"),
    _credit("a credit that is text", "'1'"),
    _graph(
        "two stages of one name",
        _SINGER,
        f"{_SINGER} {_SINGER}",
        "pipeline.stages: 'singer' appears 2 times",
        "give each its own name",
    ),
    _graph(
        "two edges between the same stages",
        _EDGE,
        _EDGE.replace("),),", "), Edge(producer='writer', consumer='singer'),),"),
        "pipeline.edges: 'writer->singer' appears 2 times",
    ),
    _graph(
        "two outputs of one modality",
        _OUTPUTS,
        _OUTPUTS.replace('"audio"', '"text"'),
        "pipeline.outputs: 'text' appears 2 times",
    ),
    _graph(
        "a modality without a name",
        _OUTPUTS,
        _OUTPUTS.replace('"audio"', '" "'),
        "pipeline.outputs[1].modality: ' ' is not a name",
        "give printable text",
    ),
    _graph(
        "a dtype that no stage has",
        _SINGER,
        _SINGER.replace("options", "dtype='float33', options"),
        "pipeline.stages.singer.dtype: 'float33' is not supported",
        "use one of float32",
    ),
    _graph(
        "a place that is not a device",
        _SINGER,
        _SINGER.replace("options", "place='gpu', options"),
        "pipeline.stages.singer.place: 'gpu' is not a device",
        'use "cpu" or "cuda:N"',
    ),
    _graph(
        "a modality of a page",
        _OUTPUTS,
        _OUTPUTS.replace('"audio"', "'x' * 10_000"),
        "pipeline.outputs[1].modality: 'xxx",
        "... is not a name",
    ),
    _graph(
        "a stage whose name is a page",
        _SINGER,
        _SINGER.replace('"singer"', "'x' * 10_000"),
        "pipeline.stages: 'xxx",
        "... is not a valid name of a stage",
        "use an identifier of at most 100 characters",
    ),
    _graph(
        "an adapter without a colon",
        '"plain_talk.pipeline:Sung"',
        '"plain_talk.pipeline.Sung"',
        "pipeline.edges.writer->singer.adapter: 'plain_talk.pipeline.Sung' is not an import path",
        'write "module:attribute"',
    ),
    _graph(
        "a front end without a colon",
        '"plain_talk.pipeline:Reader"',
        '"plain_talk.pipeline.Reader"',
        "pipeline.frontend: 'plain_talk.pipeline.Reader' is not an import path",
        'write "module:class"',
    ),
    _pipeline(
        "an adapter of a module that is not there",
        PluginError,
        '"plain_talk.pipeline:Sung"',
        '"plain_talk.adapters:Sung"',
        "pipeline.edges.writer->singer.adapter: importing plain_talk.adapters failed: ModuleNotFoundError",
        _PLUGIN,
        _IN_PIPELINE,
    ),
    _pipeline(
        "an adapter of an output that is not there",
        ConfigError,
        _OUTPUTS,
        _OUTPUTS.replace('stage="singer"', 'stage="singer", adapter="plain_talk.pipeline:Sang"'),
        "pipeline.outputs.audio.adapter: plain_talk.pipeline has no 'Sang' (plugin plain-talk-plugin, ",
        "/plain_talk/pipeline.py)",
        "did you mean 'Sung'?",
    ),
    _pipeline(
        "a pipeline of another family",
        PluginError,
        'family="talk"',
        'family="walk"',
        "families.talk.pipeline: pipeline.family is 'walk', and its entry's name is 'talk': give both the same",
        _PLUGIN,
        _IN_PIPELINE,
    ),
    _pipeline(
        "a connector that is misspelled",
        PluginError,
        'connector="wire"',
        'connector="wires"',
        "edges.writer-singer.connector: there is no connector 'wires'",
        "did you mean 'wire'?",
        _PLUGIN,
        _IN_PIPELINE,
    ),
    Fault(
        "a connector that a setting misspells",
        "open",
        PluginError,
        "pipeline.py",
        _EDGE,
        _EDGE,
        ("edges.writer-singer.connector: there is no connector 'wires'", "did you mean 'wire'?"),
        settings=(("edges.writer-singer.connector", "wires"),),
    ),
    _pipeline(
        "a module that cannot be parsed",
        PluginError,
        "import msgspec\n",
        "import msgspec\ndef (:  # here\n",
        "families.talk.pipeline: importing plain_talk.pipeline failed: SyntaxError: invalid syntax",
    ),
    _pipeline(
        "a decoder that is its class",
        PluginError,
        f"    def text_decoder(self) -> TextDecoder | None:\n{_LETTERS}",
        "    def text_decoder(self):  # here\n        return Letters",
        "pipeline.frontend.text_decoder: gave the class Letters",
        "return an object of it: Letters()",
    ),
    _pipeline(
        "a decoder without its methods",
        PluginError,
        f"    def text_decoder(self) -> TextDecoder | None:\n{_LETTERS}",
        "    def text_decoder(self):  # here\n        return self",
        "pipeline.frontend.text_decoder: gave a Reader without finish, push",
        "return an omni.frontend.base.TextDecoder",
    ),
    _pipeline(
        "a decoder whose push is a number",
        PluginError,
        f"    def text_decoder(self) -> TextDecoder | None:\n{_LETTERS}",
        "    def text_decoder(self):  # here\n        made = Letters()\n        made.push = 0\n        return made",
        "pipeline.frontend.text_decoder: gave a Letters whose push is a int",
        "make push a method",
    ),
    _reader("voices that are numbers", "voices = (1, 2)", "pipeline.frontend.voices: is (1, 2)", "give names"),
    _reader("a sample rate of nothing", "sample_rate = 0", "pipeline.frontend.sample_rate: is 0", "give Hz"),
    _reader("a negative shortest prompt", "shortest_prompt = -1", "pipeline.frontend.shortest_prompt: is -1"),
    _reader(
        "a vocabulary whose tokenizer is none",
        "vocabulary = lambda self: __import__('omni.frontend.vocabulary', fromlist=['x']).Vocabulary((b'a',), list)",
        "pipeline.frontend.vocabulary.tokenizer: is <class 'list'>",
        "tokenizers.Tokenizer",
    ),
    _full_memory("a load that is out of memory", "raise MemoryError"),
    _full_memory("a load that allocates too much", "__import__('torch').empty(10**15)"),
    _stages(
        "a kind of another name",
        PluginError,
        'class SingerKind:\n    name = "sing"',
        'class SingerKind:  # here\n    name = "song"',
        "kinds.sing.name: is 'song', and its entry's name is 'sing'",
        "give both the same",
    ),
    _refusing("options that fail an assertion", "assert self.volume <= 1, 'too loud'", 2.0, "AssertionError: too loud"),
    _refusing("options that divide by zero", "1 / (self.volume - 2)", 2.0, "ZeroDivisionError: float division by zero"),
    _refusing("options that exit", "self.volume < 2 or exit(3)", 2.0, "SystemExit: 3", "__post_init__"),
    Fault(
        "raw device tensors that are text",
        "open",
        PluginError,
        "connector.py",
        "class WireConnector:\n    reach = Reach.PROCESS\n    raw_device_tensors = True\n",
        "class WireConnector:  # here\n    reach = Reach.PROCESS\n    raw_device_tensors = 'yes'\n",
        ("connectors.wire.raw_device_tensors: gave a str", "return a bool"),
    ),
)
