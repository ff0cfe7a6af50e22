"""Values of a right type that no user can get, interruptions, and requests that a worker loses."""

from typing import Literal

from omni.errors import StageError
from tests.omni.broken_plugins.fault import Fault

_PUSH = "        self.pushed += 1\n        return [payload]\n"
_PREPARE = '        return Prepared(inputs={"writer": [Payload(Line(text=text))]}, prompt_tokens=len(text))\n'
_DECODED = '    def push(self, ids: Sequence[int]) -> str:\n        return "".join(map(chr, ids))\n'
_TOKENS = "        return Payload(GeneratedTokens(ids=(ord(letter),)))\n"
_AUDIO = "        return Payload(AudioChunk(samples=self.model.samples(letter), sample_rate=8000))\n"
_FINISHING = '                self.finish(request.id, "stop", {"letters": 0})\n'
_SINGER = "class Singer(Worker):\n"
_LAST = "payload.meta.ids == (33,)"
_EDGE = "stage 'writer->singer' failed while "
_RUNNING = "stage 'singer' failed while running: "
_WRITER = "stage 'writer' failed while giving an output: "
_PLUGIN = "(plugin plain-talk-plugin, "


def _fault(at: Literal["request", "stage"], name: str, file: str, old: str, new: str, *says: str) -> Fault:
    return Fault(name, at, StageError, file, old, new, says, closed="singer" if at == "stage" else "")


def _push(name: str, code: str, *says: str) -> Fault:
    new = f"        if {_LAST}:  # !\n            {code}  # here\n{_PUSH}"
    return _fault("request", name, "pipeline.py", _PUSH, new, f"{_EDGE}adapting a payload: ", *says)


def _tokens(name: str, made: str, *says: str) -> Fault:
    new = f"        if letter == '!':\n            return Payload(GeneratedTokens({made}))\n{_TOKENS}"
    return _fault("request", name, "stages.py", _TOKENS, new, _WRITER, _PLUGIN, *says)


def _audio(name: str, made: str, *says: str) -> Fault:
    new = f"        if letter == '!':\n            return Payload({made})\n{_AUDIO}"
    start = "stage 'singer' failed while giving an output: "
    return _fault("request", name, "stages.py", _AUDIO, new, start, _PLUGIN, *says)


def _line(name: str, made: str, *says: str) -> Fault:
    """The writer gives this instead of tokens."""
    new = f"        if letter == '!':\n            return Payload({made})\n{_TOKENS}"
    return _fault("request", name, "stages.py", _TOKENS, new, _WRITER, _PLUGIN, *says)


def _end(name: str, reason: str, counts: str, *says: str) -> Fault:
    """The singer's requests end so."""
    new = (
        "                if self.name == 'singer':\n"
        f"                    self.finish(request.id, {reason}, {counts})\n"
        "                else:\n    "
    )
    return _fault("request", name, "stages.py", _FINISHING, new + _FINISHING, _RUNNING, _PLUGIN, *says)


def _singer(at: Literal["request", "stage"], name: str, method: str, code: str, *says: str) -> Fault:
    return _fault(at, name, "stages.py", _SINGER, f"{_SINGER}    {method}\n        {code}\n\n", *says)


def _report(name: str, method: str, returned: str, *says: str) -> Fault:
    start = f"stage 'singer' failed while reporting its {method}: {method} returned "
    remedy = "return whole numbers by name, of 64 bits"
    return _singer("request", name, f"def {method}(self):", f"return {returned}", start, remedy, _PLUGIN, *says)


VALUES = (
    _tokens("ids that are None", "ids=None", "the ids of a GeneratedTokens are None: give a tuple of numbers"),
    _tokens("ids that are an array", "ids=np.array([33])", "are a ndarray: give a tuple of numbers"),
    _tokens("ids of 71 bits", "ids=(2**70,)", "are (1180591620717411303424,): give a tuple of numbers of 64 bits"),
    _tokens("ids that are bools", "ids=(True,)", "are (True,): give a tuple"),
    _tokens("tokens whose end is a number", "ids=(33,), ends=2", "`ends` of a GeneratedTokens is 2"),
    _line(
        "an output of lone surrogates",
        "Line(text='\\ud800')",
        "a Line cannot be given: 'utf-8' codec",
        "give valid Unicode",
    ),
    _audio(
        "a rate of 71 bits",
        "AudioChunk(samples=np.zeros(8, np.float32), sample_rate=2**70)",
        "the rate of an AudioChunk is 1180591620717411303424",
    ),
    _end("a reason of lone surrogates", "'\\ud800'", "{}", "the reason of a Done is '\\ud800'", "give valid Unicode"),
    _end("counts that are text", "'stop'", "{'letters': 'many'}", "are {'letters': 'many'}: give a dict of numbers"),
    _end("counts of 71 bits", "'stop'", "{'letters': 2**70}", "give a dict of numbers of 64 bits by name"),
    _singer(
        "stage",
        "a request id that is a list",
        "def feed(self, request, message):",
        "super().feed(request, message); self.outbox.append(Produced([], Payload(Line(text='x')), COMPLETED))",
        f"{_RUNNING}the request id of a Produced is a list: give that of its Open",
        _PLUGIN,
    ),
    _push("an error of lone surrogates", "raise ValueError('\\ud800')", "ValueError: \\ud800"),
    _fault(
        "request",
        "an error with fields that are not text",
        "pipeline.py",
        _PUSH,
        f"        if {_LAST}:  # !\n            import omni; raise omni.StageError('x', 3, object())\n{_PUSH}",
        "stage 'x' failed while 3: <object object at ",
    ),
    _fault(
        "request",
        "a decoder that gives lone surrogates",
        "pipeline.py",
        _DECODED,
        "    def push(self, ids):  # here\n        return '\\ud800' if 33 in ids else ''.join(map(chr, ids))  # !\n",
        "stage 'frontend' failed while decoding text: the text decoder returned '\\ud800'",
    ),
    _singer(
        "stage",
        "requests that are cleared",
        "def feed(self, request, message):",
        "super().feed(request, message); self.requests.clear()",
        f"{_RUNNING}`requests` was changed, which lost or added ['r",
        "only `finish` and `fail` end a request",
        _PLUGIN,
    ),
)

INTERRUPTS = (
    _push("a push that is interrupted", "raise KeyboardInterrupt", "KeyboardInterrupt: "),
    _fault(
        "request",
        "a prepare that is interrupted",
        "pipeline.py",
        _PREPARE,
        f"        if '!' in text:\n            raise KeyboardInterrupt  # here\n{_PREPARE}",
        "stage 'frontend' failed while preparing the request: KeyboardInterrupt",
    ),
    _fault(
        "request",
        "a decoder that is interrupted",
        "pipeline.py",
        _DECODED,
        f"{_DECODED.splitlines(True)[0]}        if 33 in ids:  # !\n            raise KeyboardInterrupt  # here\n"
        f"{_DECODED.splitlines(True)[1]}",
        "stage 'frontend' failed while decoding text: KeyboardInterrupt",
    ),
    _fault(
        "request",
        "a send that is interrupted",
        "connector.py",
        "    def send(self, payload: Payload, ready: Event) -> Ref:\n",
        "    def send(self, payload: Payload, ready: Event) -> Ref:\n"
        f"        if {_LAST}:  # !\n            raise KeyboardInterrupt  # here\n",
        f"{_EDGE}sending a payload: KeyboardInterrupt",
    ),
    _singer(
        "stage",
        "an advance that is interrupted",
        "def advance(self):",
        "if self.requests: raise KeyboardInterrupt  # here",
        f"{_RUNNING}KeyboardInterrupt",
    ),
)

UNSENDABLE = (
    _line("an output of a class within a function", "msgspec.defstruct('C', [])()", "a C cannot be given: TypeError"),
    _line("an output with an object", "Line(text=object())", "a Line cannot be given: TypeError", "give structs of"),
)
"""Outputs that only another process cannot take."""

VALUES_REPORTED = (
    _report("a usage of 71 bits", "usage", "{'requests': 2**70}"),
    _report("counters that are bools", "counters", "{'on': True}", "{'on': True}: "),
    _report("a usage with numbers as names", "usage", "{3: 1}", "{3: 1}: "),
    _report("counters with names of lone surrogates", "counters", "{'\\ud800': 1}"),
)
