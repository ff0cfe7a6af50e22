"""The adapters that families share."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from omni.payload import Encoded, GeneratedTokens, PageSlice, Payload
from omni_ar.adapters import EncodedToEmbedding, FramesToCodes, TokensToCodes, audio_embeddings, image_embeddings
from omni_ar.inputs import MultimodalEmbedding, TokenCodes
from omni_frames import CodeFrames


@pytest.mark.parametrize(("factory", "name"), [(audio_embeddings, "audio"), (image_embeddings, "image")])
def test_media_fill_the_embedding_of_their_index(factory: Callable[[None], EncodedToEmbedding], name: str) -> None:
    adapter, embeddings = factory(None), torch.zeros(5, 8)

    (payload,) = adapter.push(Payload(Encoded(index=3), {"embeddings": embeddings}))

    assert payload.meta == MultimodalEmbedding(name=name, index=3)
    assert payload.tensors["embeddings"] is embeddings
    assert adapter.finish("stop") == ()


def test_frames_pass_on_as_codes_and_their_ids_do_not() -> None:
    adapter, pages = FramesToCodes(None), PageSlice(torch.zeros(2, 4, 8, dtype=torch.int64), np.arange(1))

    assert adapter.push(Payload(GeneratedTokens(ids=(4,)))) == ()
    (payload,) = adapter.push(Payload(TokenCodes(), {"codes": pages}))

    assert payload.meta == CodeFrames(count=1)
    assert payload.tensors == {"codes": pages}
    assert adapter.finish("stop") == ()


def test_codes_go_on_without_the_one_that_ends_them() -> None:
    adapter = TokensToCodes(None)
    (frames,) = adapter.push(Payload(GeneratedTokens(ids=(5, 6), ends=False)))
    assert isinstance(frames.meta, CodeFrames)
    assert frames.meta.codes is not None
    assert (frames.meta.count, frames.meta.codes.tolist(), frames.tensors) == (2, [[5], [6]], {})
    (last,) = adapter.push(Payload(GeneratedTokens(ids=(9, 40), ends=True)))
    assert isinstance(last.meta, CodeFrames)
    assert last.meta.codes is not None
    assert last.meta.codes.tolist() == [[9]]
    assert not adapter.push(Payload(GeneratedTokens(ids=(40,), ends=True)))
    assert not adapter.finish("stop")
