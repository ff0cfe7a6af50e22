"""The front end contract of a model family: from a chat to stage inputs, and from token ids to text. Front ends run in threads of
their own, outside of the engine's."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from omni.frontend.limit import PromptLimit
from omni.frontend.vocabulary import Vocabulary
from omni.payload import Payload
from omni.sampling import SamplingParams

Role = Literal["system", "user", "assistant"]
ControlTokensIn = Literal["text", "tokens"]


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class AudioPart:
    """samples: float32 mono at the front end's `sample_rate`. field: its path in the request, for errors."""

    samples: NDArray[np.float32]
    field: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture of a message. image: in RGB. field: the picture's path in the request, for errors."""

    image: Image.Image
    field: str


Part = TextPart | AudioPart | ImagePart


@dataclass(frozen=True, slots=True)
class Message:
    """name: of the speaker, for families that distinguish speakers of one role; never empty."""

    role: Role
    content: tuple[Part, ...]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Chat:
    """A user's request, media decoded.

    modalities: `Pipeline.prepared` of the requested ones. voice: as given; None takes the family's default. cache_salt:
    requests of different salts share no cached state. control_tokens: whether the written form of a control token in
    the user's texts, such as `<|im_end|>`, is text or the token. limit: of the prompt, to refuse a long text before it
    is tokenized; None leaves that to the stage. raw: the text of the only message is the prompt, without the chat
    template; only for front ends that take it (`Frontend.takes_raw_prompts`).
    """

    messages: tuple[Message, ...]
    modalities: frozenset[str]
    voice: str | None
    sampling: Mapping[str, SamplingParams]
    _: KW_ONLY
    cache_salt: str = ""
    control_tokens: ControlTokensIn = "text"
    limit: PromptLimit | None = None
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A chat as stage inputs. inputs: payloads by stage, with host tensors only. edges: arguments of adapters, by edge
    (`"thinker->talker"`). prompt_tokens: length of the text model's prompt, for usage."""

    inputs: Mapping[str, Sequence[Payload]]
    edges: Mapping[str, msgspec.Struct] = field(default_factory=dict)
    prompt_tokens: int = 0


@runtime_checkable
class TextDecoder(Protocol):
    """Token ids to text, incrementally. One per request."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that `ids` complete; bytes of an unfinished character are kept."""

    def finish(self) -> str: ...


class Frontend(ABC):
    """Built by `Pipeline.frontend` from the checkpoint. Its methods are called from several threads."""

    voices: tuple[str, ...] = ()
    """Voices that a request can name, the default first. Without any, requests that name one are refused before `prepare`."""
    sample_rate: int = 16000
    """Sample rate of `AudioPart`s, in Hz. Sound is resampled to it as it is decoded."""
    takes_names: bool = False
    """Whether `Message.name` is used. If not, messages with one are refused before `prepare`."""
    takes_raw_prompts: bool = False
    """Whether `prepare` follows `Chat.raw`. If not, such requests are refused before it."""
    shortest_prompt: int = 0
    """Tokens that every prompt has at least, checked against the stage's limit at start. 0 if that is unknown."""

    @abstractmethod
    def prepare(self, chat: Chat) -> Prepared:
        """Raises InputError for faults of the request (an unknown voice, an empty prompt, ...). The stage refuses a long prompt."""

    def text_decoder(self) -> TextDecoder | None:
        """Returns a new decoder. None only if no stage writes text."""
        return None

    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary of the stage that writes the text; always the same object. None without such a stage, or if it is unknown:
        stop strings, bad words and structured outputs are then refused."""
        return None
