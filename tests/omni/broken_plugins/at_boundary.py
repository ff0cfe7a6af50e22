"""Faults of values that are read after a plugin's call is over: boxes, messages, tensors, exceptions. The plugin's place in the
error is then that of the class that made them."""

from typing import Literal

from omni.errors import OmniError, PluginError, StageError
from tests.omni.broken_plugins.fault import HERE, Fault

ELSEWHERE = "# elsewhere"
"""Marks code whose error names another line of the plugin."""
_SINGER = "class Singer(Worker):\n"
_MARKED = "class Singer(Worker):  # here\n"
_TOKENS = "        return Payload(GeneratedTokens(ids=(ord(letter),)))\n"
_AUDIO = "        return Payload(AudioChunk(samples=self.model.samples(letter), sample_rate=8000))\n"
_PUSH = "        self.pushed += 1\n        return [payload]\n"
_LOAD = "        return PlainStage(Singer(context.stage.name, build(context)))\n"
_BOXES = "        super().__init__(name)\n"
_SOUND = 'PipelineOutput(modality="audio", stage="singer")'
_PASSED = 'PipelineOutput(modality="audio", stage="singer", adapter="omni.pipeline.adapter:PassThrough")'
_PLUGIN = "(plugin plain-talk-plugin, "
_RUNNING = "stage 'singer' failed while running: "
_GIVING = "stage 'singer' failed while giving an output: "
_WRITER = "stage 'writer' failed while giving an output: Produced.payload.tensors"
_READER = "stage 'frontend' failed while preparing the request: Prepared.inputs['writer'][0].tensors"
_DENSE = "['x'] is torch.sparse_coo: give a dense tensor"
_FREED = "['x'] is [8], and its memory was freed: it has 0 bytes; give a tensor that owns its values"
_META = "['x'] is on the meta device, which holds no values: give one of the stage's device"
_FREE = "{'x': [x := torch.zeros(8), x.untyped_storage().resize_(0)][0]}"
_EXPANDED = "['x'] is [1000000000000], expanded from 4 bytes to 4,000,000,000,000: give one that fits into memory"

_RAISES = """
class Meta(type):
    @property
    def __name__(cls):
        raise RuntimeError("name")

class Nameless(Exception, metaclass=Meta):
    pass

Nameless.__module__ = None

class Causeless(Exception):
    @property
    def __cause__(self):
        raise RuntimeError("cause")

    @property
    def __class__(self):
        raise RuntimeError("class")

class Exiting(Exception):
    def __str__(self):
        raise SystemExit(3)
"""
"""Exceptions that raise when they are read."""


def _fault(
    at: Literal["open", "request", "stage"],
    kind: type[OmniError],
    name: str,
    file: str,
    old: str,
    new: str,
    *says: str,
    also: tuple[str, str, str] | None = None,
) -> Fault:
    return Fault(name, at, kind, file, old, new, says, closed="singer" if at == "stage" else "", also=also)


def _indented(code: str, depth: int) -> str:
    return "".join(f"{' ' * depth}{line}\n" if line else "\n" for line in code.strip().splitlines())


def _feed(
    at: Literal["request", "stage"], name: str, code: str, *says: str, also: tuple[str, str, str] | None = None
) -> Fault:
    """The singer does this after it has taken the `!`."""
    mark = "# !" if at == "request" else ""
    method = (
        "    def feed(self, request, message):\n        super().feed(request, message)\n"
        f"        if 33 in message.payload.meta.ids:  {mark}\n{_indented(code, 12)}\n"
    )
    marked = _SINGER if HERE in code or ELSEWHERE in code else _MARKED
    return _fault(at, StageError, name, "stages.py", _SINGER, marked + method, *says, also=also)


def _box(name: str, code: str, *says: str) -> Fault:
    return _feed("stage", f"an {name}", code, f"{_RUNNING}{says[0]}", *says[1:])


def _advance(name: str, method: str, code: str, returned: str) -> Fault:
    new = f"{_SINGER}    {method}  # here\n        {code}\n\n"
    says = f"advance returned {returned}: return whether something was done, True or False"
    return _fault("stage", StageError, name, "stages.py", _SINGER, new, _RUNNING, says)


def _given(name: str, payload: str, *says: str) -> Fault:
    """The singer makes this of the `!`."""
    new = f"        if letter == '!':\n            return Payload({payload})\n{_AUDIO}"
    return _fault("request", StageError, name, "stages.py", _AUDIO, new, f"{_GIVING}{says[0]}", *says[1:], _PLUGIN)


def _produced(name: str, tensors: str, *says: str) -> Fault:
    """The writer gives these tensors with a token."""
    made = f"Payload(GeneratedTokens(ids=(33,)), {tensors})"
    new = f"        if letter == '!':\n            import torch\n\n            return {made}\n{_TOKENS}"
    return _fault("request", StageError, name, "stages.py", _TOKENS, new, f"{_WRITER}{says[0]}", *says[1:], _PLUGIN)


def _prepared(name: str, tensors: str, *says: str) -> Fault:
    made = f"Prepared(inputs={{'writer': [Payload(Line(text=text), {tensors})]}}, prompt_tokens=1)"
    lines = f"if '!' in text:\n    import numpy as np\n    import torch\n\n    return {made}"
    head = "    def prepare(self, chat: Chat) -> Prepared:  # here\n        text = ''.join(message_texts(chat))\n"
    new = head + _indented(lines, 8)
    old = '    def prepare(self, chat: Chat) -> Prepared:\n        text = "".join(message_texts(chat))\n'
    return _fault("request", StageError, name, "pipeline.py", old, new, f"{_READER}{says[0]}", *says[1:])


def _raised(name: str, raised: str, *says: str) -> tuple[Fault, ...]:
    """Of the adapter, of a worker's step, and of `load`."""
    code = _indented(f"{_RAISES}\nraise {raised}  # here", 12)
    push = f"        if payload.meta.ids == (33,):  # !\n{code}{_PUSH}"
    advance = f"{_SINGER}    def advance(self):\n        if self.requests:\n{code}\n        return False\n\n"
    load = f"        if context:\n{code}{_LOAD}"
    adapting = "stage 'writer->singer' failed while adapting a payload: "
    building = "pipeline.stages.singer.model: cannot be built: "
    return (
        _fault("request", StageError, f"{name} of an adapter", "pipeline.py", _PUSH, push, adapting, *says),
        _fault("stage", StageError, f"{name} of a step", "stages.py", _SINGER, advance, _RUNNING, *says),
        _fault("open", PluginError, f"{name} of load", "stages.py", _LOAD, load, building, *says),
    )


BOXES = (
    _box("outbox that is None", "self.outbox = None", "the outbox is None now, not the one of the start"),
    _box("outbox of one message", "self.outbox = type(self.outbox)(maxlen=1)", "the outbox is another deque now"),
    _feed(
        "stage",
        "an outbox that is deleted",
        "del self.outbox  # elsewhere",
        f"{_RUNNING}AttributeError: 'Singer' object has no attribute 'outbox'",
        "(plugin plain-talk-plugin, ",
        "stages.py:",
    ),
    _box("inbox that is None", "self.inbox = None", "the inbox is None now"),
    _box("inbox that is a dict", "self.inbox = {}", "the inbox is a dict now"),
    _box("inbox that is deleted", "del self.inbox", "AttributeError: 'Singer' object has no attribute 'inbox'"),
    _box(
        "inbox that cannot be read",
        "def read(self, name):\n    raise OSError(name)\n\nself.inbox = type('Box', (), {'__getattribute__': read})()",
        "the inbox is a Box now",
    ),
    _feed(
        "stage",
        "a message that cannot be read",
        "class Message:\n    __class__ = property(lambda self: 1 / 0)  # here\n\nself.outbox.append(Message())",
        f"{_RUNNING}ZeroDivisionError",
    ),
)
"""A healthy request that is at the singer fails with it; one that only needs the writer does not."""

CLOSED_BOX = _fault(
    "open",
    PluginError,
    "an outbox that drops messages",
    "stages.py",
    _BOXES,
    f"{_BOXES}        from collections import deque\n\n        self.outbox = deque(maxlen=1)\n",
    "gave a Writer whose outbox is a deque of at most 1, which drops messages: leave maxlen out",
    _PLUGIN,
)

MOVED = (
    _advance("an advance that is a generator", "def advance(self):", "yield True", "a generator"),
    _advance("an advance that is async", "async def advance(self):", "return True", "a coroutine"),
    _advance("an advance that returns an object", "def advance(self):", "return object()", "a object"),
)

READ = (
    _given(
        "samples that fit into no memory",
        "AudioChunk(samples=np.broadcast_to(np.float32(0), (10**15,)), sample_rate=8000)",
        "MemoryError: Unable to allocate",
    ),
    _feed(
        "request",
        "counts that cannot be read",
        "class Counts(dict):\n    def items(self):\n        return 1 / 0  # here\n\nself.finish(request.id, 'stop', Counts(a=1))",
        "stage 'singer' failed while ending a request: ZeroDivisionError",
    ),
    _feed(
        "request",
        "tensors that cannot be read",
        "class Tensors(dict):\n    def __iter__(self):\n        return 1 / 0  # here\n    keys = __iter__\n\n"
        "self.outbox.append(Produced(request.id, Payload(self.made('x').meta, Tensors(a=1)), COMPLETED))",
        f"{_GIVING}ZeroDivisionError",
    ),
    _feed(
        "request",
        "an output that omni's adapter passes on",
        "self.outbox.append(Produced(request.id, Payload(Line(text='x')), COMPLETED))",
        f"{_GIVING}a Line on the output 'audio': give an omni.payload.AudioChunk",
        also=("pipeline.py", _SOUND, _PASSED),
    ),
    _feed(
        "request",
        "samples that omni's adapter passes on and that fit into no memory",
        "samples = np.broadcast_to(np.float32(0), (10**15,))\n"
        "self.outbox.append(Produced(request.id, Payload(AudioChunk(samples=samples, sample_rate=8000)), COMPLETED))",
        f"{_GIVING}MemoryError: Unable to allocate",
        also=("pipeline.py", _SOUND, _PASSED),
    ),
    _feed(
        "request",
        "an event that cannot be asked",
        "class Ready:\n    def done(self):\n        raise OSError('done')  # here\n\n"
        "chunk = self.made('x').meta\nself.outbox.append(Produced(request.id, Payload(chunk), Ready()))",
        "stage 'singer->user:audio' failed while passing on a payload: OSError: done",
        also=("pipeline.py", _SOUND, _PASSED),
    ),
    _feed(
        "request",
        "a failure that was never raised",
        "self.fail(request.id, 'singing', ValueError('too high'))",
        "stage 'singer' failed while singing: ValueError: too high",
    ),
    _feed(
        "request",
        "a failure without words",
        "self.fail(request.id, None, ValueError('too high'))  # here",
        "stage 'singer' failed while failing a request: fail got None as doing, None: give words",
    ),
)

TENSORS = (
    _produced("an array for a tensor", "{'x': np.zeros(3)}", "['x'] is a ndarray: give a torch.Tensor"),
    _produced("None for a tensor", "{'x': None}", "['x'] is None: give a torch.Tensor"),
    _produced("a tensor without a name", "{1: torch.zeros(2)}", " has the name 1: give names of valid Unicode"),
    _produced("a name of lone surrogates", "{'\\ud800': torch.zeros(2)}", " has the name '\\ud800': give names"),
    _produced("a sparse tensor", "{'x': torch.eye(3).to_sparse()}", _DENSE),
    _produced("a tensor without memory", _FREE, _FREED),
    _produced("a tensor on meta", "{'x': torch.zeros(8, device='meta')}", _META),
    _produced("a tensor of 4 TB", "{'x': torch.zeros(1).expand(10**12)}", _EXPANDED),
    _prepared("an array for an input", "{'x': np.zeros(3)}", "['x'] is a ndarray: give a torch.Tensor"),
    _prepared("an input without a name", "{1: torch.zeros(2)}", " has the name 1: give names of valid Unicode"),
    _prepared("a sparse input", "{'x': torch.eye(3).to_sparse()}", _DENSE),
    _prepared("an input without memory", _FREE, _FREED),
    _prepared("an input of 4 TB", "{'x': torch.zeros(1).expand(10**12)}", _EXPANDED),
)

_ALL = (
    *_raised("an exception without a name", "Nameless('x')", "Nameless: x"),
    *_raised("an exception with a class of its own", "Causeless('x')", "Causeless: x"),
    *_raised("an exception that exits", "Exiting('x')", "Exiting: without a message"),
)
RAISED = tuple(fault for fault in _ALL if fault.at != "open")
RAISED_AT_LOAD = tuple(fault for fault in _ALL if fault.at == "open")

RESTLESS = (
    _fault(
        "request",
        StageError,
        "an advance that is always true",
        "stages.py",
        _SINGER,
        f"{_MARKED}    def advance(self):\n        super().advance()\n        return True\n\n",
    ),
)
"""`close` ends anyway."""
