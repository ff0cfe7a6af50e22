"""Stage kind `"scribe"`: reads the tokens of another stage, payloads without tensors, and gives them out. It has few desks."""

from collections.abc import Mapping, Sequence

from omni.device import COMPLETED
from omni.payload import GeneratedTokens, Payload
from omni.stage import Feed, PlainStage, Produced, StageContext
from tests.support.clerk import ClerkOptions, ClerkWorker
from tests.support.desks import Case


class TokensOnly:
    """The adapter: tokens go on, hidden states do not."""

    def __init__(self, args: object = None) -> None:
        pass

    def push(self, payload: Payload) -> Sequence[Payload]:
        return (payload,) if isinstance(payload.meta, GeneratedTokens) else ()

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()


class ScribeWorker(ClerkWorker):
    """most_unread: the most inputs that one request had here."""

    def __init__(self, context: StageContext, options: ClerkOptions) -> None:
        super().__init__(context.stage.name, context.device, options, "", lambda case, meta, rows: ())
        self.most_unread = 0

    def counters(self) -> Mapping[str, int]:
        return {**super().counters(), "most_unread": self.most_unread}

    def feed(self, request: Case[Feed], message: Feed) -> None:
        super().feed(request, message)
        self.most_unread = max(self.most_unread, len(request.inputs))

    def _give(self, case: Case[Feed], message: Feed) -> None:
        assert not message.payload.tensors
        case.read += 1
        self.outbox.append(Produced(case.id, message.payload, COMPLETED))
        message.release(COMPLETED)


class ScribeKind:
    """Has no model."""

    name = "scribe"
    options = ClerkOptions

    def load(self, context: StageContext) -> PlainStage:
        assert isinstance(context.options, ClerkOptions)
        return PlainStage(ScribeWorker(context, context.options))
