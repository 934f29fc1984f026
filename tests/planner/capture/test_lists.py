"""Operations on lists of tensors are opened to what they are in eager, in every form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusionplan.planner.capture.capture import decompositions
from fusionplan.planner.capture.decompositions.lists import LISTS
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.dynamo

FORMS = [form for form in LISTS if not form._overloadname.endswith("out")]


def arguments(form: Any, dtype: torch.dtype) -> tuple[list[Any], dict[str, Any]]:
    """For the parameters of the operation: lists of three tensors, three numbers, or one."""
    by_type = {
        "List[Tensor]": [torch.tensor([[0.25, 0.5], [0.75, 3.0]]), torch.tensor(2.0)],
        "Tensor": torch.tensor([2.0, 4.0]) if form._overloadname == "Tensor" else torch.tensor(2),
        "List[number]": [2.0, 1.25],
        "number": 1.25,
    }
    positional, named = [], {}
    for parameter in form._schema.arguments:
        value: Any = by_type.get(str(parameter.type))
        if str(parameter.type) == "List[Tensor]":
            value = [(3 * x if not dtype.is_floating_point else x).to(dtype) for x in value]
        if str(parameter.type) == "Tensor" and parameter.name != "scalars":
            value = torch.tensor(2.0).to(dtype)
        if parameter.name == "alpha":
            value = 2
        if parameter.kwarg_only:
            named[parameter.name] = value
        else:
            positional.append(value)
    return positional, named


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=["float", "int"])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form._schema.name[6:] + form._overloadname)
def test_every_form_is_eagers(form: Any, dtype: torch.dtype) -> None:
    """A number beside a list is one, also where the operation on tensors has none, and is cut to
    an integer where ATen does."""
    positional, named = arguments(form, dtype)
    try:
        eager = form(*positional, **named)
    except (RuntimeError, TypeError, NotImplementedError):
        pytest.skip("eager refuses these types")
    if LISTS[form](*positional, **named) is NotImplemented:
        assert any(isinstance(x, torch.Tensor) for x in (*positional, *named.values()))
        return
    first, others = positional[0], positional[1:]
    table = decompositions()
    traced = make_fx(lambda xs: form(xs, *others, **named), decomposition_table=table)(first)
    called = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert called
    assert form not in called
    opened = traced(first)
    for mine, theirs in zip(opened, eager, strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, equal_nan=True)


def test_there_are_all_forms() -> None:
    assert len(FORMS) > 70
