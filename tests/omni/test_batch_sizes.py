"""Which batches are captured, and which captured batch stands for another."""

import logging

import pytest

from omni.batch_sizes import BatchSizes, captured_lengths, captured_sizes, check_sizes


@pytest.mark.parametrize("most", [1, 2, 3, 8, 17, 64, 100, 1000])
def test_sizes_go_up_to_the_most_rows_and_pad_little(most: int):
    sizes = captured_sizes(None, most)
    assert list(sizes) == sorted(set(sizes), reverse=True)
    assert sizes[0] == min(most, 512)
    assert sizes[-1] == 1
    found = BatchSizes("stage", sizes)
    for rows in range(1, sizes[0] + 1):
        padded = found.padded(rows)
        assert padded in sizes
        assert rows <= padded < max(2 * rows, rows + 8)


@pytest.mark.parametrize("most", [1, 15, 16, 17, 300, 2048, 3000, 8192])
def test_lengths_go_up_to_the_most_tokens_and_pad_at_most_double(most: int):
    lengths = captured_lengths(None, most)
    assert list(lengths) == sorted(set(lengths), reverse=True)
    assert lengths[0] == most
    found = BatchSizes("stage", lengths)
    for tokens in range(1, most + 1):
        padded = found.padded(tokens)
        assert padded in lengths
        assert tokens <= padded <= max(16, 2 * tokens - 1)
        assert tokens <= 256 or padded <= 1.5 * tokens
        assert tokens <= 1024 or padded <= 1.25 * tokens


def test_lengths_end_where_launches_no_longer_matter():
    assert captured_lengths(None, 131_072) == captured_lengths(None, 8192)


def test_given_lengths_are_taken_the_largest_first():
    assert captured_lengths((2, 16, 2, 1), 16) == (16, 2, 1)
    assert captured_lengths((), 16) == ()


def test_given_sizes_are_taken_the_largest_first():
    assert captured_sizes((2, 16, 2, 1), 16) == (16, 2, 1)
    assert captured_sizes((), 16) == ()


@pytest.mark.parametrize("sizes", [(0,), (17,), (4, -1)])
def test_sizes_that_no_batch_has_are_refused(sizes: tuple[int, ...]):
    with pytest.raises(ValueError, match="graph_batch_sizes must be at least 1, at most max_num_seqs, 16"):
        check_sizes(sizes, 16)
    with pytest.raises(ValueError, match="graph_lengths must be at least 1, at most longest, 16"):
        check_sizes(sizes, 16, "graph_lengths", "longest")


def test_a_batch_that_is_too_large_is_told_of_once(caplog: pytest.LogCaptureFixture):
    found = BatchSizes("talker", (1, 4))
    with caplog.at_level(logging.WARNING):
        assert [found.padded(rows) for rows in (1, 2, 5, 4, 9)] == [1, 4, None, 4, None]
    assert [record.getMessage() for record in caplog.records] == [
        "talker: a batch of 5 rows runs uncaptured, as do all of more than 4: raise talker.graph_batch_sizes"
    ]


def test_sizes_may_come_one_by_one_and_count_anything(caplog: pytest.LogCaptureFixture):
    found = BatchSizes("eyes", unit="embeddings", option="graph_lengths")
    for size in (64, 16, 64):
        found.add(size)
    with caplog.at_level(logging.WARNING):
        assert [found.padded(length) for length in (3, 17, 65)] == [16, 64, None]
        found.clear()
        assert found.padded(3) is None
    assert [record.getMessage() for record in caplog.records] == [
        "eyes: a batch of 65 embeddings runs uncaptured, as do all of more than 64: raise eyes.graph_lengths"
    ]


def test_where_nothing_is_captured_there_is_nothing_to_tell(caplog: pytest.LogCaptureFixture):
    assert BatchSizes("talker").padded(3) is None
    assert not caplog.records
