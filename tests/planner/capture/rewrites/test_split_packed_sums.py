"""Sums over unpacked weights, one for each place in a byte and each group that shares a scale."""

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture import on_a_copy
from fusionplan.planner.capture.decompositions.decompose import decompositions
from fusionplan.planner.capture.rewrites.rewrite import rewritten
from fusionplan.planner.capture.rewrites.split_packed_sums import split_packed_sums
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten
K, N, GROUP = 64, 24, 16


def traced(function, *given):
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) for each in given]
        return make_fx(lambda *x: [function(*x)], decomposition_table=decompositions())(*fakes)


def packed(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def halves(w: torch.Tensor) -> list[torch.Tensor]:
    return [(part.to(torch.int8) - 8) for part in (w & 15, w >> 4)]


def of_groups(x, w, s):
    """Two weights in a byte side by side, a scale for each group of neighbours."""
    whole = torch.stack(halves(w), -1).reshape(N, -1, GROUP)
    return F.linear(x, (whole.to(x.dtype) * s[..., None]).reshape(N, -1))


def of_rows(x, w, s):
    """A scale for each row."""
    whole = torch.stack(halves(w), -1).reshape(N, -1)
    return F.linear(x, whole.to(x.dtype) * s[:, :1])


def of_bytes(x, w, s):
    """A whole byte for each weight."""
    whole = (w.to(torch.int16) - 128).reshape(N, -1, GROUP)
    return F.linear(x, (whole.to(x.dtype) * s[..., None]).reshape(N, -1))


def of_quarters(x, w, s):
    """Four weights in a byte, scaled in float32."""
    whole = torch.stack([((w >> n) & 3).to(torch.int8) - 2 for n in (0, 2, 4, 6)], -1)
    scaled = whole.reshape(N, -1, GROUP).float() * s[..., None].float()
    return F.linear(x, scaled.to(x.dtype).reshape(N, -1))


SAME = {
    "groups": (of_groups, packed(N, K // 2), 2),
    "rows": (of_rows, packed(N, K // 2), 2),
    "bytes": (of_bytes, packed(N, K), 1),
    "quarters": (of_quarters, packed(N, K // 4), 4),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SAME)
def test_each_byte_and_each_scale_is_read_once(name, dtype) -> None:
    function, w, places = SAME[name]
    torch.manual_seed(1)
    given = torch.randn(1, K, dtype=dtype), w, torch.rand(N, K // GROUP).to(dtype)
    gm = traced(function, *given)
    split = rewritten(gm, "inference")
    products = [n for n in split.graph.nodes if n.target is aten.bmm.default]
    assert len(products) == places
    assert not any(n.target in (aten.mm.default, aten.cat.default) for n in split.graph.nodes)
    read = [n for n in split.graph.nodes if n.op == "placeholder" and n.users]
    assert len(read) == 3
    (found,), (eager,) = split(*given), gm(*given)
    assert found.dtype is eager.dtype
    exact = function(given[0].double(), w, given[2].double())
    error, allowed = ((each.double() - exact).norm() for each in (found, eager))
    assert error <= 2 * allowed + 1e-5 * exact.norm()


def one_behind_the_other(x, w, s):
    """The weights of low bits, then those of high bits: not in turns."""
    whole = torch.cat(halves(w), -1).to(x.dtype)
    return F.linear(x, whole * s.repeat_interleave(GROUP, -1))


STAYS = {
    "several rows": (of_groups, torch.randn(2, K), packed(N, K // 2)),
    "float16 might overflow": (of_groups, torch.randn(1, K).half(), packed(N, K // 2)),
    "no groups, and no turns": (one_behind_the_other, torch.randn(1, K), packed(N, K // 2)),
    "no bytes": (of_bytes, torch.randn(1, K), packed(N, K).to(torch.int32)),
}


@pytest.mark.parametrize("name", STAYS)
def test_other_products_stay_whole(name, monkeypatch) -> None:
    failed: list[object] = []
    monkeypatch.setattr(on_a_copy.log, "debug", lambda text, **_: failed.append(text))
    function, x, w = STAYS[name]
    gm = traced(function, x, w, torch.rand(N, K // GROUP).to(x.dtype))
    assert split_packed_sums(gm) is gm
    assert not failed  # nor was it tried in vain


def test_with_the_numerics_of_eager_nothing_is_split() -> None:
    gm = traced(of_groups, torch.randn(1, K), packed(N, K // 2), torch.rand(N, K // GROUP))
    found = rewritten(gm, "inference", "eager")
    assert any(n.target is aten.mm.default for n in found.graph.nodes)
