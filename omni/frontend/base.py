"""What a model family brings to the front end: from a chat to stage inputs, and from token ids back to text.

The front end runs in threads of its own. It talks to the engine by messages only.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from omni.frontend.encoding.limit import PromptLimit
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
    """samples: float32 mono at the front end's `sample_rate`. field: where in the request it stood, for errors."""

    samples: NDArray[np.float32]
    field: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """image: RGB. field: where in the request it stood, for errors."""

    image: Image.Image
    field: str


Part = TextPart | AudioPart | ImagePart


@dataclass(frozen=True, slots=True)
class Message:
    """name: which of several of the same role says it, where a family tells them apart; never empty."""

    role: Role
    content: tuple[Part, ...]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Chat:
    """A request as the user put it, media decoded.

    voice: as given, None takes the family's default. cache_salt: requests of different salts share nothing that is cached.
    control_tokens: whether the written form of a control token, such as `<|im_end|>`, is text in what the user says, or the token.
    limit: of the prompt, so that what is too long is refused before it is tokenized; None leaves that to its stage.
    """

    messages: tuple[Message, ...]
    modalities: frozenset[str]
    voice: str | None
    sampling: Mapping[str, SamplingParams]
    cache_salt: str = ""
    control_tokens: ControlTokensIn = "text"
    limit: PromptLimit | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A chat as stage inputs.

    inputs: by stage name, the payloads that stage gets from the front end, host tensors only.
    edges: by edge name (`"thinker->talker"`), what that edge's adapter needs to know of this request.
    prompt_tokens: length of the text model's prompt, for usage.
    """

    inputs: Mapping[str, Sequence[Payload]]
    edges: Mapping[str, msgspec.Struct] = field(default_factory=dict)
    prompt_tokens: int = 0


class TextDecoder(Protocol):
    """Token ids to text, incrementally. One per request."""

    def push(self, ids: Sequence[int]) -> str:
        """Text that `ids` completes; bytes of an unfinished character are kept back."""
        ...

    def finish(self) -> str:
        """What was kept back."""
        ...


class Frontend(ABC):
    """Built by `Pipeline.frontend`, called with the checkpoint. Its methods are called from several threads."""

    @property
    def voices(self) -> tuple[str, ...]:
        """Voices a request can name, the default first. If there are none, requests that name one are refused before `prepare`."""
        return ()

    @property
    def sample_rate(self) -> int:
        """Hz, at which `AudioPart`s are wanted; sound is resampled to it as it is decoded."""
        return 16000

    @property
    def takes_names(self) -> bool:
        """Whether `Message.name` means something here. If not, messages with one are refused before `prepare`."""
        return False

    @abstractmethod
    def prepare(self, chat: Chat) -> Prepared:
        """Raises InputError for what is wrong with the request (an unknown voice, an empty prompt, ...).

        A prompt that is too long is refused by its stage, which knows what it was configured for.
        """

    def text_decoder(self) -> TextDecoder | None:
        """A new one. None only where no stage writes text."""
        return None

    def vocabulary(self) -> Vocabulary | None:
        """What the ids of the stage that writes the text stand for; always the same object.

        None if no stage does or that cannot be told: stop strings, bad words and structured outputs are then refused.
        """
        return None
