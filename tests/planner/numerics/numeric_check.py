"""Runs a family of `numeric_cases` as one generated kernel and says where it differs from eager."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from fusionplan.planner.capture.capture import Captured, capture, decompositions
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import NATURAL, Config
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph import ops
from fusionplan.planner.lower import lower
from fusionplan.planner.nests.group_nests import schedule_group
from fusionplan.planner.nests.linear_forms import Role
from fusionplan.planner.runtime.machine_code.compile import interpreted
from numeric_family import Family
from oracle import DEVICE, run_program, whole_group
from torch.fx.experimental.proxy_tensor import make_fx

Values = dict[str, object]
"""Eager's value of every node of a graph, by name."""


class _Eager(torch.fx.Interpreter):
    """Runs a graph and keeps all values."""

    def __init__(self, found: Captured) -> None:
        super().__init__(found.gm)
        self.values: Values = {}

    def run_node(self, n: torch.fx.Node) -> object:
        value = self.values[n.name] = super().run_node(n)
        return value


def values_of(found: Captured, inputs: Sequence[torch.Tensor]) -> Values:
    run = _Eager(found)
    run.run(*inputs)
    return run.values


def differences(family: Family) -> tuple[list[str], list[str]]:
    """What differs, a line each, and the functions that no generated kernel computed."""
    inputs = [x.to(DEVICE) for x in family.inputs]
    functions = list(family.functions.values())
    with torch.device(DEVICE):
        traced = make_fx(
            lambda *given: [f(*given) for f in functions],
            decomposition_table=decompositions(),
            tracing_mode="fake",
        )(*inputs)
        found = capture(traced)
        wanted = [f(*inputs) for f in functions]
        exact = [
            f(*(x.double() if x.is_floating_point() else x for x in inputs)) for f in functions
        ]
        values = values_of(found, inputs)
    results = computed(found, values, config_of(found))
    lines: list[str] = []
    others: list[str] = []
    rows = zip(family.functions, wanted, exact, found.graph.outputs, strict=True)
    for name, want, known, node in rows:
        mine = results.get(_behind_views(found, node))
        if mine is None:
            others.append(name)
            continue
        mine = mine.reshape(want.shape)
        apart = first_difference(mine, want, family.ulps)
        if family.ulps and apart and not first_difference(mine, known.to(want.dtype), family.ulps):
            apart = (
                None  # It is eager that is wrong, as its vectors of bfloat16 are here and there.
            )
        lines += [f"{family.name}: {name}{_place(inputs, apart)}"] * (apart is not None)
    return lines, others


def config_of(found: Captured) -> Config:
    """Small blocks along every axis that is not held."""
    group = whole_group(found.graph).graph
    schedule = schedule_group(group, NATURAL)
    assert not isinstance(schedule, Refusal), schedule
    (kernel,) = schedule.kernels
    axes = [axis for axis in kernel.nest.axes if axis.role is not Role.HELD]
    return Config(tuple((axis.name, 64) for axis in axes), num_warps=1, num_stages=1)


def computed(found: Captured, values: Values, config: Config) -> dict[int, torch.Tensor]:
    part = whole_group(found.graph)
    program = lower(part.graph, config, interpreted=interpreted())
    assert isinstance(program, Program), program
    given = [values[found.fx_nodes[i].name] for i in part.inputs]
    assert all(isinstance(x, torch.Tensor) for x in given)
    results = run_program(program, part, given)  # type: ignore[arg-type]
    return dict(zip(part.outputs, results, strict=True))


def _behind_views(found: Captured, node: int | None) -> int:
    assert node is not None
    while ops.is_free(found.graph.nodes[node]) and found.graph.nodes[node].inputs:
        (node,) = found.graph.nodes[node].inputs
    return node


def first_difference(mine: torch.Tensor, want: torch.Tensor, ulps: int) -> str | None:
    """The first element that is not eager's."""
    if mine.dtype != want.dtype:
        return f"{mine.dtype} in place of {want.dtype}"
    same = mine == want
    if want.is_floating_point():
        same &= torch.signbit(mine) == torch.signbit(want)
        same |= mine.isnan() & want.isnan()
        if ulps:
            near = (mine.double() - want.double()).abs() <= ulps * _ulp(want)
            same |= near & (mine.isfinite() & want.isfinite()) & (mine.ne(0) | want.ne(0))
    if bool(same.all()):
        return None
    at = int((~same).flatten().nonzero()[0])
    return f"[{at}] {mine.flatten()[at].item()!r} in place of {want.flatten()[at].item()!r}"


def _ulp(x: torch.Tensor) -> torch.Tensor:
    info = torch.finfo(x.dtype)
    return (x.double().abs() * info.eps).clamp_min(info.tiny * info.eps)


def _place(inputs: Sequence[torch.Tensor], apart: str | None) -> str:
    """The difference, and the operands there."""
    if apart is None or not apart.startswith("["):
        return f": {apart}"
    at = int(apart[1 : apart.index("]")])
    shown = (repr(x.flatten()[at].item()) for x in inputs if x.dim() == 1 and at < x.numel())
    return f"({', '.join(shown)}): {apart}"


def one_by_one(family: Family) -> Iterator[str]:
    """The same with a kernel for each function, where that of all of them fails."""
    for name, function in family.functions.items():
        alone = Family(family.name, {name: function}, family.inputs, family.ulps)
        try:
            yield from differences(alone)[0]
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            yield f"{family.name}: {name}: {type(error).__name__} {str(error).strip()[-200:]!r}"
