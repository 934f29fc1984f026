"""Operations whose formula in torch is not what eager's kernel computes."""

from __future__ import annotations

from fusionplan.planner.capture.decompositions.torchs_formulas import (
    _has_another_gradient,
    _takes_others,
)


def test_on_a_gpu_the_nearest_pixel_has_another_gradient_for_some_sizes() -> None:
    """At a factor of 1.2 result 30 reads pixel 24 by a float32 of 1 / 1.2, and counts among those
    of pixel 25 by one of 1.2."""
    assert _takes_others(31, 37, 1.2, exact=False)
    assert not _takes_others(31, 62, 2.0, exact=False)
    assert not _takes_others(31, 15, 0.5, exact=True)
    assert _has_another_gradient([4, 31], [4, 37], None, False) is _takes_others(
        31, 37, None, False
    )
    assert not _has_another_gradient([31], None, [2.0], exact=False)
