"""Messages as users write them, and whatever else is given: read, or refused by the one error that names the field."""

import base64
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from omni.errors import InputError
from omni.frontend.base import AudioPart, ImagePart, Message, TextPart
from omni.frontend.messages import check_messages, parse_messages, remote_media
from omni.media import MediaOptions

STRICT = MediaOptions(strict=True, allowed_domains=(".example.com",), local_folder="/nowhere")


def wav() -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(4000), 16000, format="WAV")
    return buffer.getvalue()


def png(side: int = 40) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((side, side), 90).save(buffer, "PNG")
    return buffer.getvalue()


WAV, PNG = wav(), png()
PNG_URI = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


def user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


def sound(source: object) -> list[dict[str, object]]:
    return user([{"type": "input_audio", "input_audio": source}])


def picture(source: object) -> list[dict[str, object]]:
    return user([{"type": "image_url", "image_url": source}])


def refused(messages: object, **arguments: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        parse_messages(messages, **arguments)
    assert_can_be_read(caught.value)
    return caught.value


def assert_can_be_read(error: InputError) -> None:
    """Valid Unicode, with at most 200 characters of the given value, in the field and in the problem."""
    assert str(error).encode().decode().isprintable()
    assert len(error.field) <= 50 + 200
    assert len(error.problem) <= 100 + 200
    assert error.field.startswith("messages")


def text(value: object, **fields: object) -> dict[str, object]:
    return {"type": "text", "text": value, **fields}


def test_roles_and_parts_keep_their_order() -> None:
    assert parse_messages("hi") == (Message("user", (TextPart("hi"),)),)
    chat = [
        {"role": "system", "content": "be brief"},
        *user([text("a"), text("b")]),
        {"role": "assistant", "content": "c"},
    ]
    parsed = parse_messages(chat)
    assert [message.role for message in parsed] == ["system", "user", "assistant"]
    assert parsed[1].content == (TextPart("a"), TextPart("b"))


def test_parts_hold_the_media_that_sources_name(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    opened = Image.open(io.BytesIO(PNG))
    pixels = np.array(opened)
    named = (str(tmp_path / "a.png"), PNG_URI, {"url": PNG_URI}, {"url": PNG_URI, "detail": "auto"})
    for source in (*named, PNG, opened, pixels, torch.from_numpy(pixels)):
        image = parse_messages(picture(source))[0].content[0]
        assert isinstance(image, ImagePart)
        np.testing.assert_array_equal(np.asarray(image.image)[:, :, 0], pixels)
    ones = np.ones(4000, np.float32)
    for heard in (
        ones,
        torch.from_numpy(ones),
        (ones, 16000),
        WAV,
        {"data": base64.b64encode(WAV).decode(), "format": "wav"},
    ):
        part = parse_messages([*user("x"), *sound(heard)])[1].content[0]
        assert isinstance(part, AudioPart)
        assert part.field == "messages[1].content[0].input_audio"
        np.testing.assert_array_equal(part.samples, np.full(4000, float(not isinstance(heard, dict | bytes))))


def truncated() -> Image.Image:
    return Image.open(io.BytesIO(PNG[:-600]))


def closed() -> Image.Image:
    opened = Image.open(io.BytesIO(PNG))
    opened.close()
    return opened


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.zeros(4000), 0.1, 0, torch.qint8)


ARRAYS: dict[str, Callable[[], object]] = {
    "sparse": lambda: torch.zeros(4, 4000).to_sparse(),
    "sparse rows": lambda: torch.zeros(4, 4000).to_sparse_csr(),
    "meta": lambda: torch.zeros(4000, device="meta"),
    "quantized": quantized,
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(2000), torch.zeros(3000)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.zeros(2000), torch.zeros(3000)], layout=torch.jagged),
    "complex tensor": lambda: torch.zeros(4000, dtype=torch.complex64),
    "bits": lambda: torch.zeros(4000, dtype=torch.uint8).view(torch.bits8),
    "number": lambda: torch.tensor(1.0),
    "complex": lambda: np.zeros(4000, complex),
    "objects": lambda: np.array([None] * 4000),
    "structured": lambda: np.zeros(4000, [("left", np.float32), ("right", np.float32)]),
    "masked": lambda: np.ma.masked_array(np.zeros(4000), np.ones(4000, bool)),
    "times": lambda: np.zeros(4000, "datetime64[s]"),
    "texts": lambda: np.array(["x"] * 4000),
    "bytes": lambda: np.array([b"x"] * 4000),
    "four dimensions": lambda: np.zeros((2, 2, 2, 2)),
    "many dimensions": lambda: np.zeros((1,) * 32),
    "not finite": lambda: np.full((4, 4000), np.nan),
    "too large for float32": lambda: np.full(4000, 1e300),
}


@pytest.mark.filterwarnings("ignore")  # Of torch, that some of these kinds are prototypes.
@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize(("kind", "wrap"), [("input_audio", sound), ("image_url", picture)])
def test_arrays_that_hold_no_samples_and_no_pixels(kind: str, wrap: Callable[[object], object], name: str) -> None:
    assert refused(wrap(ARRAYS[name]())).field == f"messages[0].content[0].{kind}"
    if kind == "input_audio":
        assert refused(sound((ARRAYS[name](), 16000))).field.startswith("messages[0].content[0].input_audio")


def test_tensors_that_only_look_odd() -> None:
    samples = torch.linspace(-0.5, 0.5, 4000)
    for given_ in (
        samples.clone().requires_grad_(),
        torch.nn.Parameter(samples),
        torch.complex(samples, -samples).conj().imag,
        samples.double(),
        samples.numpy().astype(">f4"),
        (samples.numpy() * 2**15).astype(">i2").astype(">i2"),
        samples.numpy().view(np.memmap),
    ):
        message, *_ = parse_messages(sound(given_))
        part = message.content[0]
        assert isinstance(part, AudioPart)
        np.testing.assert_allclose(part.samples, samples, atol=1e-4)
    for given_ in (torch.zeros(2, 2).to(torch.float8_e4m3fn), torch.zeros(2, 2, dtype=torch.bfloat16)):
        parse_messages(picture(given_))


NO_PICTURES: list[object] = [
    *({"url": {"url": PNG}}, [PNG], (byte for byte in PNG), truncated(), {"url": truncated()}, closed()),
    *(PNG[:-600], "~nobody-of-that-name/x.png", "x\ud800.png", Path("x\ud800.png"), "file://[::1/x.png"),
    *("file:///a%00b", "data:image/png;base64,\ud800", "data:\ud800,abc", base64.b64encode(PNG * 1000).decode()),
    *("http://\ud800/", "http://a b/" + "x" * 10**5, "https://example.com/" + "x" * 10**5),
]
NO_SOUNDS: list[object] = [
    *("~nobody-of-that-name/x.wav", "x\ud800.wav", "UklGR" * 10**5, [WAV], range(10), memoryview(WAV), torch, {}),
    *({"data": WAV, "format": "wav"}, {"data": np.zeros(3), "format": "wav"}, {"data": "", "format": "wav"}),
    *({"data": "UklGRg==", 3: 4, "\ud800" * 999: 5}, (), (x for x in (np.zeros(4000), 16000))),
]


VIDEOS = ("video", "video_url", "input_video")
ODD_MESSAGES: list[tuple[object, str]] = [
    ((message for message in user("hi")), "messages"),
    (np.array(["hi"]), "messages"),
    ({"role": "user"}, "messages"),
    (b"hi", "messages"),
    ([np.array(["hi"])], "messages[0]"),
    ([{"role": np.array(["user"]), "content": "hi"}], "messages[0].role"),
    ([{"role": np.array(["user", "system"]), "content": "hi"}], "messages[0].role"),
    ([{"role": torch.zeros(2), "content": "hi"}], "messages[0].role"),
    ([{"role": "\ud800", "content": "hi"}], "messages[0].role"),
    ([{"role": "x" * 10**6, "content": "hi"}], "messages[0].role"),
    ([{"role": ["x" * 1000] * 1000, "content": "hi"}], "messages[0].role"),
    (user(np.array(["hi", "you"])), "messages[0].content"),
    (user(part for part in ""), "messages[0].content"),
    (user([np.array(["hi", "you"])]), "messages[0].content[0]"),
    (user([{"type": np.array(["text", "text"])}]), "messages[0].content[0].type"),
    (user([{"type": torch.zeros(2)}]), "messages[0].content[0].type"),
    (user([{"type": 10**5000}]), "messages[0].content[0].type"),
    (user([{"type": "\ud800"}]), "messages[0].content[0].type"),
    (user([{"type": "text", "text": np.str_("a\ud800")}]), "messages[0].content[0].text"),
    (user([{"type": "text", "text": "a", "\ud800": 1}]), "messages[0].content[0].\\ud800"),
    (user([{"type": "text", "text": "a", 3: 1}]), "messages[0].content[0].3"),
    (user([{"type": "text", "text": "a", ("k", 1): 1}]), "messages[0].content[0].('k', 1)"),
    ([{"role": "user", "content": "a", "k" * 10**6: 1}], "messages[0]." + "k" * 197 + "..."),
    ([{"role": "user", "content": "a", "name": np.array(["x", "y"])}], "messages[0].name"),
    ([{"role": "user", "content": "a", "name": "\ud800"}], "messages[0].name"),
    (picture({"url": PNG, "detail": np.array(["auto", "low"])}), "messages[0].content[0].image_url.detail"),
    (picture({"url": PNG, "\ud800": 1}), "messages[0].content[0].image_url.\\ud800"),
    (sound({"data": "\ud800", "format": "wav"}), "messages[0].content[0].input_audio.data"),
    (sound({"data": "UklGRg==", "format": np.zeros(3)}), "messages[0].content[0].input_audio.format"),
    (sound((np.zeros(4000), 10**5000)), "messages[0].content[0].input_audio[1]"),
    (sound((np.zeros(4000), np.zeros(2))), "messages[0].content[0].input_audio[1]"),
    (sound((np.zeros(4000), np.float64(16000))), "messages[0].content[0].input_audio[1]"),
    *((picture(source), "messages[0].content[0].image_url") for source in NO_PICTURES),
    *((sound(source), "messages[0].content[0].input_audio") for source in NO_SOUNDS),
]
PART, IMAGE, AUDIO = "messages[0].content[0]", "messages[0].content[0].image_url", "messages[0].content[0].input_audio"
WRONG: list[tuple[object, str, str]] = [
    (None, "messages", "NoneType"),
    ([], "messages", "empty"),
    (["hi"], "messages[0]", "str"),
    (["x", *user("y")], "messages[0]", "give a dict"),
    ([{"content": "hi"}], "messages[0].role", "missing"),
    ([{"role": "user"}], "messages[0].content", "missing"),
    ([{"role": "robot", "content": "hi"}], "messages[0].role", "'robot' is unknown"),
    ([{"role": "user", "content": "hi", "mood": "x"}], "messages[0].mood", "not known"),
    (user(None), "messages[0].content", "NoneType"),
    (user([]), "messages[0].content", "empty"),
    (user([text("a"), {"text": "b"}]), "messages[0].content[1].type", "None is unknown"),
    (user([{"type": "tool", "tool": 1}]), f"{PART}.type", "text, input_audio, image_url"),
    *((user([{"type": kind, kind: 1}]), f"{PART}.type", "video input is not supported") for kind in VIDEOS),
    (user([{"type": "text"}]), f"{PART}.text", "missing"),
    (user([text(3)]), f"{PART}.text", "int"),
    (user([text("a", tone=1)]), f"{PART}.tone", "not known"),
    (sound("none.wav"), AUDIO, "none.wav"),
    (sound(3), AUDIO, "int"),
    (picture({"src": "x"}), f"{IMAGE}.url", "missing"),
    (picture({"url": "x", "detail": "high"}), f"{IMAGE}.detail", "'high'"),
    (picture({"url": "no.png"}), IMAGE, "no.png"),
    ("a\ud800", "messages", "is not valid Unicode"),
    (user("a\ud800"), "messages[0].content", "is not valid Unicode"),
    (user([text("a\ud800")]), f"{PART}.text", "is not valid Unicode"),
]


@pytest.mark.parametrize(
    ("messages", "field", "words"),
    [*WRONG, *((messages, field, "") for messages, field in ODD_MESSAGES)],
    ids=lambda value: value if isinstance(value, str) and len(value) < 80 and value.isprintable() else "",
)
def test_errors_name_the_field(messages: object, field: str, words: str) -> None:
    error = refused(messages, names=True, downloaded={})
    assert error.field == field
    assert words in str(error)


def test_equivalent_forms_of_messages_are_read() -> None:
    """NumPy strings, tuples for lists, base64 without a format."""
    hi = (Message("user", (TextPart("hi"),)),)
    assert parse_messages(tuple(user(({"type": "text", "text": np.str_("hi")},)))) == hi
    assert parse_messages([{"role": np.str_("user"), "content": "hi", "name": None}]) == hi
    (part,) = parse_messages(sound({"data": base64.b64encode(WAV).decode()}))[0].content
    assert isinstance(part, AudioPart)
    assert len(part.samples) == 4000


@pytest.mark.parametrize(
    ("messages", "urls"),
    [
        (picture("https://example.com/a"), ["https://example.com/a"]),
        (picture({"url": "HTTP://example.com/a"}), ["HTTP://example.com/a"]),
        (sound("http://example.com/b"), ["http://example.com/b"]),
        (sound({"data": "http://example.com/b"}), []),
        (picture("file:///a"), []),
        (picture("data:,http://a"), []),
        ("http://example.com/c", []),
        (user("http://example.com/c"), []),
        ([*user([{"type": "text", "text": "http://a"}]), *picture("http://b"), *picture("http://b")], ["http://b"]),
        ([*picture("http://b"), {"role": "user"}], []),
    ],
)
def test_remote_media_finds_the_urls_to_download(messages: object, urls: list[str]) -> None:
    found = remote_media(messages)
    assert [each.url for each in found] == urls
    assert all(each.field.startswith("messages[") for each in found)


def test_only_the_downloaded_media_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni.media.source.MediaDownloader", lambda options: pytest.fail("the network was asked"))
    url = "https://example.com/a"
    both = [*picture({"url": url}), *sound(url), *picture(url)]
    assert [each.field for each in remote_media(both)] == ["messages[0].content[0].image_url"]
    first, _, last = parse_messages([*picture(url), *user("x"), *picture(url)], downloaded={url: PNG})
    assert first.content[0].image.size == last.content[0].image.size == (40, 40)  # type: ignore[union-attr]
    assert refused(both, downloaded={url: PNG}).field == "messages[1].content[0].input_audio"
    assert "it was not downloaded" in str(refused(both, downloaded={}))
    elsewhere = MediaOptions(allowed_domains=("example.org",))
    assert "not downloaded from there" in str(refused(both, downloaded={url: PNG}, media=elsewhere))


def test_a_bound_on_urls() -> None:
    several = [*picture("http://a"), *user("x"), *sound("http://b"), *picture("http://c")]
    check_messages(several, media=MediaOptions(max_downloads_per_request=3))
    with pytest.raises(InputError, match=r"URL number 3.*max_downloads_per_request") as caught:
        check_messages(several, media=MediaOptions(max_downloads_per_request=2))
    assert caught.value.field == "messages[3].content[0].image_url"


def test_structure_is_checked_before_anything_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("load_audio", "load_image"):
        monkeypatch.setattr(f"omni.frontend.messages.{name}", lambda *args, **settings: pytest.fail("it was opened"))
    good = [*picture("http://example.com/a"), *sound("nowhere.wav"), *picture("data:,x"), *sound(WAV)]
    check_messages(good)
    for wrong in ({"role": "user"}, *user([{"type": "video"}]), *sound(3), *picture({"src": "x"})):
        with pytest.raises(InputError):
            check_messages([*good, wrong])
        assert refused([*good, wrong]).field.startswith("messages[4]")


ODD: list[Callable[[], object]] = [
    lambda: np.zeros(3),
    lambda: np.zeros((2, 3000), np.float32),
    lambda: torch.zeros(3000),
    lambda: torch.zeros(2, 2, device="meta"),
    lambda: Image.new("P", (3, 2)),
    lambda: truncated(),
    lambda: WAV,
    lambda: bytearray(PNG),
    lambda: WAV[:60],
    lambda: Path("nowhere"),
    lambda: Path("/"),
    lambda: (x for x in "ab"),
    lambda: {1, 2},
    lambda: object(),
    lambda: object,
    lambda: 10**5000,
    lambda: range(3),
    lambda: base64.b64encode(WAV).decode(),
    lambda: "data:;base64," + base64.b64encode(PNG).decode(),
    lambda: "file:///",
    lambda: "~x",
    lambda: "/dev/zero",
    lambda: "http://example.com/\ud800",
    lambda: "https://[",
    lambda: (np.zeros(3000), 16000),
    lambda: (np.zeros(3000), -1),
]

WORDS = [
    *("role", "content", "type", "text", "user", "system", "image_url", "input_audio", "url", "data", "format"),
    "name",
]


def values() -> st.SearchStrategy[object]:
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.sampled_from([*WORDS, "detail", "auto", "video"]),
        st.text(st.characters(), max_size=12),  # with lone surrogates
        st.binary(max_size=12),
        st.sampled_from(ODD).map(lambda make: make()),
    )
    keys = st.one_of(st.sampled_from(WORDS), st.text(st.characters(), max_size=4), st.integers(), st.none())
    return st.recursive(
        leaves,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
        max_leaves=6,
    )


def parts() -> st.SearchStrategy[object]:
    """Similar to valid ones."""
    value = values()
    sound = st.one_of(value, st.fixed_dictionaries({"data": value, "format": value}), st.tuples(value, value))
    picture = st.one_of(value, st.fixed_dictionaries({"url": value}))
    kinds = {"input_audio": sound, "image_url": picture, "text": value}
    return st.one_of(
        *(st.fixed_dictionaries({"type": st.just(kind), kind: given}) for kind, given in kinds.items()), value
    )


def chats() -> st.SearchStrategy[object]:
    message = st.fixed_dictionaries(
        {"role": st.one_of(st.just("user"), values()), "content": st.one_of(st.lists(parts(), max_size=3), values())},
        optional={"name": values()},
    )
    return st.one_of(st.lists(st.one_of(message, values()), max_size=3), st.lists(message, max_size=2), values())


@pytest.fixture(scope="module", autouse=True)
def no_downloads() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omni.media.download.MediaDownloader.fetch", lambda *args: pytest.fail("the network was asked"))
        yield


@pytest.mark.filterwarnings("ignore")  # Of the libraries, about damaged files.
@settings(max_examples=250)
@given(messages=chats(), strict=st.booleans())
def test_nothing_else_comes_out(messages: object, strict: bool) -> None:
    media = STRICT if strict else MediaOptions(max_image_pixels=10_000, max_audio_samples=10_000)
    fetched = {each.url: PNG for each in remote_media(messages)}
    try:
        parse_messages(messages, names=True, media=media, downloaded=fetched)
    except InputError as error:
        assert_can_be_read(error)
    else:
        check_messages(messages, names=True, media=media)
