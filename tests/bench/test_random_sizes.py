"""One tune for all sizes, rehearsed in the interpreter."""

import pytest
import torch
from fusionplan.bench import random_sizes


@pytest.mark.slow
def test_one_tune_serves_sizes_of_several_buckets(capsys, monkeypatch):
    monkeypatch.setitem(random_sizes.FUNCTIONS, "softmax", (_softmax, lambda n: [(4, n)], 1))
    monkeypatch.setattr(random_sizes, "drawn", lambda count, most: [20, 33, 70, 71])
    options = ["softmax", "--device", "cpu", "--rounds", "1", "--seconds", "3"]
    assert random_sizes.main(options) == 0
    out = capsys.readouterr().out
    assert "softmax      4 sizes: " in out


def _softmax(x):
    return torch.softmax(x * 2, -1)


def test_sizes_are_drawn_by_their_logarithm():
    sizes = random_sizes.drawn(400, 8192)
    assert min(sizes) >= random_sizes.LEAST
    assert max(sizes) <= 8192
    assert 100 < sum(size < 128 for size in sizes) < 300


def test_usage(capsys):
    with pytest.raises(SystemExit) as error:
        random_sizes.main(["none"])
    assert error.value.code == 2


def test_the_limit_begins_behind_the_tune(capsys, monkeypatch):
    """A tune may take longer than all that is left for the sizes."""
    now = iter(range(0, 10_000, 100))

    def timed(name, sizes, device, seconds, rounds):
        for size in sizes:
            yield random_sizes.RandomSize(name, size, 1e-6, 1e-6, 1e-6, 0)

    monkeypatch.setattr(random_sizes, "timed", timed)
    monkeypatch.setattr(random_sizes.time, "monotonic", lambda: next(now))
    assert random_sizes.main(["softmax", "--device", "cpu", "--count", "50", "--limit", "250"]) == 0
    assert "softmax      3 sizes: " in capsys.readouterr().out
