"""The sizes that are captured, and the captured graph that a batch is padded to."""

import logging
from collections.abc import Callable, Iterable, Sequence

import pytest

from omni.device.graphs import CapturedGraphs, captured_lengths, captured_sizes, check_sizes


def graphs_of(stage: str, sizes: Iterable[int], **settings: str) -> CapturedGraphs[str, str]:
    graphs = CapturedGraphs[str, str](stage, **settings)
    for size in sizes:
        graphs.add("decode", size, f"graph-{size}")
    return graphs


def found(graphs: CapturedGraphs[str, str], size: int, key: str = "decode") -> int | None:
    padded, graph = graphs.find(key, size)
    assert (padded, graph) == (size, None) or graph == f"graph-{padded}"
    return padded if graph is not None else None


@pytest.mark.parametrize("most", [1, 2, 3, 8, 17, 64, 100, 1000])
def test_sizes_go_up_to_the_most_rows_and_pad_little(most: int):
    sizes = captured_sizes(None, most)
    assert list(sizes) == sorted(set(sizes), reverse=True)
    assert sizes[0] == min(most, 512)
    assert sizes[-1] == 1
    graphs = graphs_of("stage", sizes)
    for rows in range(1, sizes[0] + 1):
        padded = found(graphs, rows)
        assert padded in sizes
        assert rows <= padded < max(2 * rows, rows + 8)


@pytest.mark.parametrize("most", [1, 15, 16, 17, 300, 2048, 3000, 8192])
def test_lengths_go_up_to_the_most_tokens_and_pad_at_most_double(most: int):
    lengths = captured_lengths(None, most)
    assert list(lengths) == sorted(set(lengths), reverse=True)
    assert lengths[0] == most
    graphs = graphs_of("stage", lengths)
    for tokens in range(1, most + 1):
        padded = found(graphs, tokens)
        assert padded in lengths
        assert tokens <= padded <= max(16, 2 * tokens - 1)
        assert tokens <= 256 or padded <= 1.5 * tokens
        assert tokens <= 1024 or padded <= 1.25 * tokens


def test_lengths_end_where_launches_no_longer_matter():
    assert captured_lengths(None, 131_072) == captured_lengths(None, 8192)


@pytest.mark.parametrize("choose", [captured_lengths, captured_sizes])
def test_given_sizes_are_taken_the_largest_first(choose: Callable[[tuple[int, ...], int], Sequence[int]]):
    assert (*choose((2, 16, 2, 1), 16), *choose((), 16)) == (16, 2, 1)


@pytest.mark.parametrize("sizes", [(0,), (17,), (4, -1)])
def test_sizes_that_no_batch_has_are_refused(sizes: tuple[int, ...]):
    with pytest.raises(ValueError, match="graph_batch_sizes must be at least 1, at most max_num_seqs, 16"):
        check_sizes(sizes, 16)
    with pytest.raises(ValueError, match="graph_lengths must be at least 1, at most longest, 16"):
        check_sizes(sizes, 16, "graph_lengths", "longest")


def test_a_batch_that_is_too_large_is_logged_once(caplog: pytest.LogCaptureFixture):
    graphs = graphs_of("talker", (4, 1))
    with caplog.at_level(logging.WARNING):
        assert [found(graphs, rows) for rows in (1, 2, 5, 4, 9)] == [1, 4, None, 4, None]
    assert caplog.messages == [
        "talker: batches of more than 4 rows run uncaptured: raise talker.graph_batch_sizes",
    ]


def test_sizes_count_anything_and_are_gone_when_cleared(caplog: pytest.LogCaptureFixture):
    graphs = graphs_of("eyes", (64, 16), unit="embeddings", option="graph_lengths")
    with caplog.at_level(logging.WARNING):
        assert [found(graphs, length) for length in (3, 17, 65)] == [16, 64, None]
        graphs.clear()
        assert found(graphs, 3) is None
    assert caplog.messages == ["eyes: batches of more than 64 embeddings run uncaptured: raise eyes.graph_lengths"]


def test_each_key_has_sizes_of_its_own_and_other_batches_are_logged_once(caplog: pytest.LogCaptureFixture):
    graphs = graphs_of("voice", (4, 2), others="short chunks")
    graphs.add("first", 8, "graph-8")
    with caplog.at_level(logging.WARNING):
        assert [found(graphs, 3), found(graphs, 3, "first")] == [4, 8]
        assert [found(graphs, size, "last") for size in (1, 3)] == [None, None]
        graphs.log_uncaptured("pictures")
        graphs.log_uncaptured("pictures")
    assert caplog.messages == ["voice: short chunks run uncaptured", "voice: pictures run uncaptured"]


def test_stages_without_captured_graphs_log_nothing(caplog: pytest.LogCaptureFixture):
    assert found(graphs_of("talker", ()), 3) is None
    graphs_of("talker", ()).log_uncaptured("pictures")
    assert not caplog.records
