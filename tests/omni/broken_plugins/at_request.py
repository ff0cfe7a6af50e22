"""Faults that show when a request runs: it fails, or its stage is closed. Those with a `!` in the condition are one request's."""

from omni.errors import StageError
from tests.omni.broken_plugins.fault import Fault

_PUSH = "        self.pushed += 1\n        return [payload]\n"
_FINISH = "    def finish(self, reason: str) -> Sequence[Payload]:\n        return []\n"
_MAKE = "    def __init__(self, args: msgspec.Struct | None) -> None:\n        self.pushed = 0\n"
_PREPARE = '        return Prepared(inputs={"writer": [Payload(Line(text=text))]}, prompt_tokens=len(text))\n'
_EDGE = "stage 'writer->singer' failed while "


def _pipeline(name: str, old: str, new: str, *says: str) -> Fault:
    return Fault(name, "request", StageError, "pipeline.py", old, new, says)


def _prepare(name: str, new: str, *says: str) -> Fault:
    new = f'        if "!" in text:\n            {new}\n{_PREPARE}'
    return _pipeline(name, _PREPARE, new, "stage 'frontend' failed while preparing the request", *says)


ADAPTERS = (
    _pipeline(
        "a push that raises",
        _PUSH,
        "        raise KeyError('voice')  # here\n",
        f"{_EDGE}adapting a payload: KeyError: 'voice'",
    ),
    _pipeline(
        "a push that returns None",
        "    def push(self, payload: Payload) -> Sequence[Payload]:\n" + _PUSH,
        "    def push(self, payload):  # here\n        self.pushed += 1\n",
        f"{_EDGE}adapting a payload: the adapter returned None",
        "return a list of Payload, empty if no input is complete",
    ),
    _pipeline(
        "a push that returns a payload",
        "    def push(self, payload: Payload) -> Sequence[Payload]:\n" + _PUSH,
        "    def push(self, payload):  # here\n        return payload\n",
        f"{_EDGE}adapting a payload: the adapter returned a Payload",
        "return a list of Payload",
    ),
    _pipeline(
        "a push that returns its struct",
        "    def push(self, payload: Payload) -> Sequence[Payload]:\n" + _PUSH,
        "    def push(self, payload):  # here\n        return [payload.meta]\n",
        f"{_EDGE}adapting a payload: the adapter returned a GeneratedTokens at index 0",
        "return a list of Payload",
    ),
    _pipeline(
        "a push that returns a payload of None",
        "    def push(self, payload: Payload) -> Sequence[Payload]:\n" + _PUSH,
        "    def push(self, payload):  # here\n        return [payload, Payload(None)]\n",
        f"{_EDGE}adapting a payload: the adapter returned a list, and the payload at index 1 has None as meta",
        "give a msgspec.Struct",
    ),
    _pipeline(
        "a push that returns a payload of a dict",
        "    def push(self, payload: Payload) -> Sequence[Payload]:\n" + _PUSH,
        "    def push(self, payload):  # here\n        return [Payload({'text': 'x'})]\n",
        f"{_EDGE}adapting a payload: the adapter returned a list, and the payload at index 0 has a dict as meta",
    ),
    _pipeline(
        "a push that returns tensors of None",
        "    def push(self, payload: Payload) -> Sequence[Payload]:\n" + _PUSH,
        "    def push(self, payload):  # here\n        return [Payload(payload.meta, None)]\n",
        f"{_EDGE}adapting a payload: the adapter returned a list, and the payload at index 0 has None as tensors",
        "give a dict of tensors by name",
    ),
    _pipeline(
        "a push that takes nothing",
        "    def push(self, payload: Payload) -> Sequence[Payload]:\n" + _PUSH,
        "    def push(self):  # here\n        return []\n",
        f"{_EDGE}adapting a payload: TypeError",
        "takes 1 positional argument",
    ),
    _pipeline(
        "a finish that raises",
        _FINISH,
        "    def finish(self, reason: str) -> Sequence[Payload]:\n        return 1 / 0  # here\n",
        f"{_EDGE}adapting a payload: ZeroDivisionError",
    ),
    _pipeline(
        "a finish that returns None",
        _FINISH,
        "    def finish(self, reason):  # here\n        pass\n",
        f"{_EDGE}adapting a payload: the adapter returned None",
    ),
    _pipeline(
        "a factory that raises",
        _MAKE,
        "    def __init__(self, args):\n        raise OSError('no table')  # here\n",
        f"{_EDGE}opening its adapter: OSError: no table",
    ),
    _pipeline(
        "a factory that takes nothing",
        'class Sung:\n    """The adapter."""\n\n' + _MAKE,
        "class Sung:  # here\n    def __init__(self):\n        self.pushed = 0\n",
        f"{_EDGE}opening its adapter: plain_talk.pipeline:Sung called with None raised TypeError",
        "name a factory that takes the edge's arguments or None, and returns an Adapter",
        "takes 1 positional argument",
    ),
    _pipeline(
        "an adapter without an end",
        _FINISH,
        "",
        f"{_EDGE}opening its adapter: the factory returned a Sung",
        "with the methods push and finish",
    ),
    _pipeline(
        "an adapter that overwrites its push",
        'class Sung:\n    """The adapter."""\n\n' + _MAKE,
        "class Sung:  # here\n    def __init__(self, args):\n        self.push = self.pushed = 0\n",
        f"{_EDGE}opening its adapter: the adapter's push is a int, not a method: give the attribute another name",
    ),
    _pipeline(
        "a factory that returns the class",
        'class Sung:\n    """The adapter."""\n',
        "def Sung(args):  # here\n    return Sung2\n\n\nclass Sung2:\n    pass\n",
        f"{_EDGE}opening its adapter: the factory returned the class Sung2: return an object of it",
    ),
)

FRONT = (
    _prepare("a prepare that exits", "raise SystemExit(3)  # here", "SystemExit: 3"),
    _prepare(
        "a number of tokens that is text",
        "return Prepared(inputs={'writer': [Payload(Line(text=text))]}, prompt_tokens='3')",
        "Prepared.prompt_tokens is a str: give a number",
    ),
    _prepare(
        "a negative number of tokens",
        "return Prepared(inputs={'writer': [Payload(Line(text=text))]}, prompt_tokens=-5)",
        "Prepared.prompt_tokens is -5: give 0 or more",
    ),
    _prepare(
        "an input of a struct made on the spot",
        "return Prepared(inputs={'writer': [Payload(msgspec.defstruct('C', [])())]})",
        "Prepared.inputs['writer'][0].meta cannot be sent to the engine's process: ",
        "give a struct defined at the top of a module",
        "plugin plain-talk-plugin, ",
    ),
    _prepare(
        "an input of text that is not Unicode",
        "return Prepared(inputs={'writer': [Payload(Line(text='\\ud800'))]})",
        "Prepared.inputs['writer'][0].meta cannot be sent to the engine's process: UnicodeEncodeError",
        "plugin plain-talk-plugin, ",
    ),
    _prepare(
        "an input of a number for a text",
        "return Prepared(inputs={'writer': [Payload(Line(text=5))]})",
        "Prepared.inputs['writer'][0].meta cannot be sent to the engine's process: ",
        "with values of its fields' types",
    ),
    _prepare(
        "arguments of an edge that are made on the spot",
        "return Prepared(inputs={'writer': [Payload(Line(text=text))]}, "
        "edges={'writer->singer': msgspec.defstruct('C', [])()})",
        "Prepared.edges['writer->singer'] cannot be sent to the engine's process: ",
    ),
    _prepare(
        "a tensor that is a list",
        "return Prepared(inputs={'writer': [Payload(Line(text=text), {'x': [1]})]})",
        "Prepared.inputs['writer'][0].tensors['x'] is a list: give a torch.Tensor",
    ),
    _pipeline(
        "a decoder that cannot be made later",
        "        return Letters()",
        "        self.made = vars(self).get('made', 0) + 1\n        return Letters() if self.made % 2 else 1 / 0  # here",
        "stage 'frontend' failed while making a text decoder: ZeroDivisionError",
    ),
    _pipeline(
        "a decoder that ends with None",
        '        return "".join(map(chr, ids))\n\n    def finish(self) -> str:\n        return ""\n',
        "        self.last = [*ids][-1:] or vars(self).get('last')\n        return ''.join(map(chr, ids))\n\n"
        "    def finish(self):\n        return None if self.last == [ord('!')] else ''\n",
        "stage 'frontend' failed while decoding text: the text decoder returned None",
    ),
    _prepare("a prepare that raises", "raise OSError('no table')  # here", "OSError: no table"),
    _prepare(
        "a prepare that returns None",
        "return None",
        "prepare returned None: return a Prepared",
        "plugin plain-talk-plugin, ",
    ),
    _prepare(
        "a prepare that returns the inputs", "return {'writer': []}", "prepare returned a dict: return a Prepared"
    ),
    _prepare(
        "inputs of a stage that is not there",
        "return Prepared(inputs={'write': []})",
        "Prepared.inputs names 'write': use one of writer, singer",
    ),
    _prepare(
        "inputs that are empty",
        "return Prepared(inputs={})",
        "Prepared.inputs is empty, and output 'text' comes from stage 'writer', to which no input leads",
        "give payloads for 'writer', or for a stage before it",
        "(plugin plain-talk-plugin, ",
    ),
    _prepare(
        "inputs that lead to no text",
        "return Prepared(inputs={'singer': [Payload(Line(text=text))]})",
        "Prepared.inputs names 'singer', and output 'text' comes from stage 'writer'",
        "(plugin plain-talk-plugin, ",
    ),
    _prepare(
        "a number of tokens that is a bool",
        "return Prepared(inputs={'writer': [Payload(Line(text=text))]}, prompt_tokens=True)",
        "Prepared.prompt_tokens is a bool: give a number",
        "(plugin plain-talk-plugin, ",
    ),
    _prepare(
        "a number of tokens of 71 bits",
        "return Prepared(inputs={'writer': [Payload(Line(text=text))]}, prompt_tokens=2**70)",
        "Prepared.prompt_tokens is 1180591620717411303424: give 0 or more, below 9,223,372,036,854,775,808",
        "(plugin plain-talk-plugin, ",
    ),
    _prepare("inputs that are None", "return Prepared(inputs=None)", "Prepared.inputs is None: give a dict"),
    _prepare(
        "an input that is not a payload",
        "return Prepared(inputs={'writer': [Line(text=text)]})",
        "Prepared.inputs['writer'] is a list: give a list of Payload",
    ),
    _prepare(
        "an input that is not a list",
        "return Prepared(inputs={'writer': Payload(Line(text=text))})",
        "Prepared.inputs['writer'] is a Payload: give a list of Payload",
    ),
    _prepare(
        "arguments of an edge that is not there",
        "return Prepared(inputs={'writer': [Payload(Line(text=text))]}, edges={'writer-singer': Line(text='')})",
        "Prepared.edges names 'writer-singer': use one of writer->singer",
    ),
    _pipeline(
        "a decoder that returns None",
        '        return "".join(map(chr, ids))',
        "        if ids == (ord('!'),):\n            return None\n        return ''.join(map(chr, ids))",
        "stage 'frontend' failed while decoding text: the text decoder returned None",
        "return text",
    ),
    _pipeline(
        "a decoder that raises",
        '        return "".join(map(chr, ids))',
        "        return ''.join([{ord('!'): None}.get(i, chr(i)) for i in ids])  # here",
        "stage 'frontend' failed while decoding text: TypeError",
    ),
)


def _worker(name: str, old: str, new: str, *says: str, closed: str = "") -> Fault:
    return Fault(name, "stage" if closed else "request", StageError, "stages.py", old, new, says, closed=closed)


def _marked(name: str, method: str, *says: str) -> Fault:
    """A method that takes no arguments: the error names the class."""
    new = f"class Singer(Worker):  # here\n    def {method}(self):\n        self.requests.clear()\n\n"
    return _worker(name, "class Singer(Worker):\n", new, *says)


_OPEN = "        return Record(message.request_id)\n"
_FEED = "        meta = message.payload.meta\n"
_END = "        request.ended = True\n"
_DROP = "        request.letters.clear()\n"
_ADVANCE = "        for request in list(self.requests.values()):\n"
_SINGER = "class Singer(Worker):\n"
_MADE = "        return Payload(AudioChunk(samples=self.model.samples(letter), sample_rate=8000))\n"
_LETTER = "        return np.full(80 * len(letters), 0.5, np.float32)\n"
_RUNNING = "stage 'singer' failed while running: "


def _singer(name: str, method: str, new: str, *says: str, closed: str = "singer") -> Fault:
    return _worker(name, _SINGER, f"{_SINGER}    {method}\n        {new}\n\n", *says, closed=closed)


_GIVING = "stage 'singer' failed while giving an output: "


def _sung(name: str, new: str, *says: str) -> Fault:
    """A letter `!` that is sung wrongly. The class is blamed."""
    old = f"{_SINGER}    def made(self, letter: str) -> Payload:\n{_MADE}"
    method = f"    def made(self, letter):\n        if letter == '!':\n            return {new}\n{_MADE}"
    return _worker(name, old, f"class Singer(Worker):  # here\n{method}", _GIVING, *says)


SOUNDS = (
    _sung(
        "a struct that is not a sound",
        "Payload(Line(text='x'))",
        "a Line on the output 'audio': give an omni.payload.AudioChunk",
    ),
    _sung(
        "a rate that changes",
        "Payload(AudioChunk(samples=self.model.samples(letter), sample_rate=16000))",
        "the rate of an AudioChunk is 16000, after 8000: keep one rate in an answer",
    ),
    _sung(
        "tensors that are None",
        "Payload(AudioChunk(samples=self.model.samples(letter), sample_rate=8000), None)",
        "Produced.payload.tensors is None: give a dict of tensors by name",
    ),
    _worker(
        "an output that is never ready",
        "class Writer(Worker):\n",
        "class Writer(Worker):  # here\n"
        "    def feed(self, request, message):\n"
        "        super().feed(request, message)\n"
        "        if '!' in request.letters:\n"
        "            self.outbox.append(Produced(request.id, self.made('x'), None))\n\n",
        "stage 'writer' failed while giving an output: the ready of a Produced is None: give an Event",
    ),
)

_CREDIT = 'connector="wire"', 'connector="wire", credit=1'
_ENDING = "\n    def end(self, request: Record, source: str) -> None:\n        request.ended = True\n"
_PAUSE = "\n    def pause(self, request: Record) -> None:\n"
_TAKING = f"        message.release(COMPLETED)\n{_ENDING}{_PAUSE}        pass\n"
_KEEPING = (
    f"        self.kept = [*vars(self).get('kept', ()), message]\n{_ENDING}"
    "        for message in self.kept:\n            message.release(COMPLETED)\n"
    f"{_PAUSE}        if '!' in request.letters:\n            raise SystemExit(3)  # here\n"
)
"""Inputs are kept until the last, so that the writer is paused after its first payload. It writes on anyway."""


def _exits(method: str, doing: str) -> Fault:
    return _singer(
        f"an {method.partition('(')[0]} that exits",
        f"def {method}:",
        "raise SystemExit(3)  # here",
        f"stage 'singer' failed while {doing}: SystemExit: 3",
        closed="",
    )


WORKERS = (
    _exits("open(self, message)", "opening a request"),
    _exits("end(self, request, source)", "taking its input"),
    Fault(
        "a pause that exits",
        "request",
        StageError,
        "stages.py",
        _TAKING,
        _KEEPING,
        ("stage 'writer' failed while pausing: SystemExit: 3",),
        also=("pipeline.py", *_CREDIT),
    ),
    _singer(
        "a failure that is a text",
        "def feed(self, request, message):",
        "self.fail(request.id, 'singing', 'too high')  # here",
        "stage 'singer' failed while singing: fail got a str as its error, 'too high': give an exception",
        closed="",
    ),
    _singer(
        "an open that raises",
        "def open(self, message):",
        "raise KeyError('rank')  # here",
        "stage 'singer' failed while opening a request: KeyError: 'rank'",
        closed="",
    ),
    _marked("an open of nothing", "open", "stage 'singer' failed while opening a request: TypeError"),
    _marked("a feed of nothing", "feed", "stage 'singer' failed while taking its input: TypeError"),
    _marked("an end of nothing", "end", "stage 'singer' failed while taking its input: TypeError"),
    _singer(
        "an open that returns None",
        "def open(self, message):  # here",
        "self.seen = True",
        "stage 'singer' failed while opening a request: open returned None",
        "return the request's record",
        closed="",
    ),
    _worker(
        "a feed that raises",
        _FEED,
        f"{_FEED}        if '!' in str(meta):\n            raise KeyError('codes')  # here\n",
        "stage 'writer' failed while taking its input: KeyError: 'codes'",
    ),
    _singer(
        "an end that raises",
        "def end(self, request, source):",
        "raise ValueError('early')  # here",
        "stage 'singer' failed while taking its input: ValueError: early",
        closed="",
    ),
    _singer(
        "an advance that raises",
        "def advance(self):",
        "return self.requests and 1 / 0  # here",
        f"{_RUNNING}ZeroDivisionError",
        closed="singer",
    ),
    _singer(
        "an advance that exits",
        "def advance(self):",
        "if self.requests: raise SystemExit(3)  # here",
        f"{_RUNNING}SystemExit: 3",
    ),
    _singer(
        "a drop that raises", "def drop(self, request):", "raise KeyError(request.id)  # here", f"{_RUNNING}KeyError"
    ),
    _singer(
        "something else in the outbox",
        "def feed(self, request, message):",
        "self.outbox.append(None)",
        f"{_RUNNING}the outbox has None",
        "put a Produced, Done or Failed there",
        "plugin plain-talk-plugin, ",
    ),
    _worker(
        "a payload that is none",
        _MADE,
        "        return np.zeros(80)\n",
        f"{_RUNNING}the payload of a Produced is a ndarray",
        "give an omni.payload.Payload",
        closed="singer",
    ),
    _worker(
        "counts that are None",
        '            elif request.ended:\n                self.finish(request.id, "stop", {"letters": 0})',
        "            elif request.ended:\n                counts = {} if self.name == 'writer' else None\n"
        "                self.finish(request.id, 'stop', counts)",
        f"{_RUNNING}the counts of a Done are None",
        "give a dict",
        closed="singer",
    ),
    _worker("a step that raises", _MADE, "        return {}[letter]  # here\n", f"{_RUNNING}KeyError", closed="singer"),
    _singer(
        "a request that is failed twice",
        "def end(self, request, source):",
        "self.fail(request.id, 'ending', ValueError('x')); self.fail(request.id, 'ending', ValueError('x'))  # here",
        f"{_RUNNING}KeyError",
    ),
)


_FINISHING = '                self.finish(request.id, "stop", {"letters": 0})\n'


def _sent(name: str, message: str, *says: str, closed: str = "singer") -> Fault:
    """A message in the singer's outbox as it takes its input."""
    return _singer(
        name,
        "def feed(self, request, message):",
        f"import omni.stage as stage; super().feed(request, message); self.outbox.append({message})",
        *says,
        closed=closed,
    )


_PLUGIN = "(plugin plain-talk-plugin, "

MESSAGES = (
    _sent("a failure without an error", "stage.Failed(request.id, 'odd')", f"{_RUNNING}the error of a Failed", _PLUGIN),
    _sent(
        "an end without a reason",
        "stage.Done(request.id, None, {})",
        f"{_RUNNING}the reason of a Done is not text",
        _PLUGIN,
    ),
    _sent(
        "a payload with a dict",
        "stage.Produced(request.id, Payload({'x': 1}), COMPLETED)",
        f"{_RUNNING}the meta of a payload is a dict: give a msgspec.Struct",
        _PLUGIN,
    ),
    _singer(
        "an outbox that is a list",
        "def feed(self, request, message):",
        "super().feed(request, message); self.outbox = [None]",
        f"{_RUNNING}the outbox is a list now, not the one of the start",
        _PLUGIN,
    ),
    _worker(
        "a writer that ends twice",
        _FINISHING,
        f"{_FINISHING}                self.outbox.append(self.outbox[-1])\n",
        "stage 'writer' failed while running: a Done for a request that is finished or unknown",
        _PLUGIN,
    ),
)


def _usage(name: str, method: str, new: str, *says: str) -> Fault:
    return _singer(
        name, f"def {method}(self):", new, f"stage 'singer' failed while reporting its {method}: ", *says, closed=""
    )


def _later(name: str, method: str) -> Fault:
    """An attribute that cannot be read once the singer has sung."""
    new = (
        f"{_SINGER}    sung = False\n\n    def advance(self):\n        self.sung |= bool(self.requests)\n"
        "        return super().advance()\n\n"
        f"    @property\n    def {method}(self):\n        if self.sung:\n"
        f"            raise KeyError('rows')  # here\n        return super().{method}\n\n"
    )
    return _worker(name, _SINGER, new, f"stage 'singer' failed while reporting its {method}: KeyError: 'rows'")


REPORTS = (
    _later("a usage that cannot be read", "usage"),
    _later("counters that cannot be read", "counters"),
    _usage("a usage that raises", "usage", "raise KeyError('rows')  # here", "KeyError: 'rows'"),
    _usage("a usage that returns None", "usage", "return None", "usage returned None: return whole numbers by name"),
    _usage(
        "a negative usage",
        "usage",
        "return {'requests': -1}",
        "usage returned {'requests': -1}: return whole numbers by name",
    ),
    _usage("a usage by number", "usage", "return {3: 1}", "usage returned {3: 1}: return whole numbers by name"),
    _usage("counters that raise", "counters", "raise KeyError('steps')  # here", "KeyError: 'steps'"),
    _usage(
        "counters that are text",
        "counters",
        "return {'retries': 'none'}",
        "counters returned {'retries': 'none'}: return whole numbers by name",
    ),
)
