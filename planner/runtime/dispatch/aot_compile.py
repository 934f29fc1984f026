"""The back end for `torch.compile(model, backend="planner",
fullgraph=True).aot_compile(inputs)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch._dynamo.aot_compile_types import SerializableCallable
from torch._functorch import config

from ...errors import PlanError


def ahead(
    gm: fx.GraphModule, inputs: Sequence[Any], compile: Callable[..., Callable[..., Any]]
) -> Ahead:
    """The graph, compiled by `compile(gm, inputs)`."""
    # For `aot_compile` torch asks every compiler for what it can write to a file.
    with config.patch(force_autograd_cache=False, bundled_autograd_cache=False):
        return Ahead(compile(gm, inputs))


class Ahead(SerializableCallable):
    """A graph that runs by its plan in this process. It cannot be saved: machine code is made anew
    from a plan in every process. Saving and loading raise PlanError."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    @classmethod
    def serialize_compile_artifacts(cls, fn: Any) -> bytes:
        raise PlanError(_NOT_SAVED)

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> Any:
        raise PlanError(_NOT_SAVED)


_NOT_SAVED = (
    "a function compiled by planner cannot be saved: in the process that is to run it, "
    "fusionplan.load(model) finds its plans in the store"
)
