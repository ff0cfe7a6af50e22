"""Settings of the server."""

import msgspec


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and waiting times of the server. Allowed sources of media are the model's setting, `frontend.media`.

    host, port: where it listens; port 0 takes a free one.
    api_keys: requests must have one of them, as `Authorization: Bearer KEY`; without keys, every client is served.
    model_names: names of the model in requests, the first in answers; none is the name it was opened by.
    voices: voices of the model by further names; OpenAI's names among them then mean these voices.
    max_requests: answers under way at once, waiting ones included; more are refused with 503 and `Retry-After`.
    max_body_bytes: of one request. max_upload_bytes: of a file to transcribe.
    max_held_bytes: of the bodies of all requests under way.
    retry_after_seconds: of a refusal.
    body_seconds: for a request's head to come, and for its body. stalled_seconds: for a client to take a piece of an
        answer; then its request is cancelled.
    max_sessions: realtime sessions at once. max_session_bytes: of the sound, texts and pictures of one. max_items: of its
        conversation. max_event_bytes: of one event of the client. max_turn_seconds: of sound that is not committed.
    ping_seconds: between pings of a websocket, and for the client's answer; without one, the session ends.
    encoder_processes: of compressed sound; without any, threads of the server's process encode it.
    drain_seconds: for the requests under way after SIGTERM.
    client_priority: whether requests may give a `priority`, which can displace those of others.
    audio_seconds: how long a later message may refer to an answer's audio by its id. max_kept_audio: answers so kept.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    model_names: tuple[str, ...] = ()
    voices: dict[str, str] = {}
    max_requests: int = 512
    max_body_bytes: int = 64 * 2**20
    max_upload_bytes: int = 25 * 2**20
    max_held_bytes: int = 2 * 2**30
    retry_after_seconds: int = 1
    body_seconds: float = 60.0
    stalled_seconds: float = 60.0
    max_sessions: int = 256
    max_session_bytes: int = 64 * 2**20
    max_items: int = 1000
    max_event_bytes: int = 16 * 2**20
    max_turn_seconds: float = 600.0
    ping_seconds: float = 20.0
    encoder_processes: int = 4
    drain_seconds: int = 30
    client_priority: bool = False
    audio_seconds: int = 3600
    max_kept_audio: int = 10_000

    def __post_init__(self) -> None:
        for name in ("max_requests", "max_body_bytes", "max_held_bytes", "retry_after_seconds", "body_seconds"):
            if not self.__getattribute__(name) > 0:
                raise ValueError(f"{name} must be greater than 0")
        for name in (
            "max_upload_bytes",
            "stalled_seconds",
            "audio_seconds",
            "max_kept_audio",
            "ping_seconds",
            "max_turn_seconds",
        ):
            if not self.__getattribute__(name) > 0:
                raise ValueError(f"{name} must be greater than 0")
        for name in ("max_sessions", "max_session_bytes", "max_items", "max_event_bytes"):
            if not self.__getattribute__(name) > 0:
                raise ValueError(f"{name} must be greater than 0")
        if not 0 <= self.port < 2**16:
            raise ValueError("port must be 0 to 65535")
        if not 0 <= self.encoder_processes <= 64:
            raise ValueError("encoder_processes must be 0 to 64")
        if self.drain_seconds < 0:
            raise ValueError("drain_seconds must be at least 0")
        # `Authorization` is ASCII, and a header with a space in its key would look malformed.
        if not all(key and key.isascii() and key.isprintable() and " " not in key for key in self.api_keys):
            raise ValueError("api_keys must be printable ASCII without spaces, and not empty")
        if not all(self.model_names):
            raise ValueError("model_names must not be empty")
