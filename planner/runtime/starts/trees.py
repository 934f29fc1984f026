"""Arguments and results of a call as data: nested tuples, lists and dictionaries of tensors and
plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .code import Untold

PLAIN = (int, float, bool, str, type(None))


def flattened(value: Any, leaf: Callable[[torch.Tensor], Any]) -> Any:
    """The value as JSON data, with what `leaf` gives in place of each tensor. Raises Untold."""
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return ["tensor", leaf(value)]
    if kind in PLAIN:
        return ["plain", kind.__name__, repr(value) if kind is float else value]
    if kind is tuple or kind is list:
        return [kind.__name__, [flattened(item, leaf) for item in value]]
    if kind is dict and all(type(name) is str for name in value):
        return ["dict", [[name, flattened(item, leaf)] for name, item in value.items()]]
    raise Untold(f"a {kind.__module__}.{kind.__qualname__} is passed")


def built(data: Any, leaf: Callable[[Any], Any]) -> Any:
    """Inverse of `flattened`. Raises ValueError for data that is none."""
    match data:
        case ["tensor", name]:
            return leaf(name)
        case ["plain", "float", str(text)]:
            return float(text)
        case ["plain", str(), value] if type(value) in PLAIN:
            return value
        case ["tuple", list(items)]:
            return tuple(built(item, leaf) for item in items)
        case ["list", list(items)]:
            return [built(item, leaf) for item in items]
        case ["dict", list(items)]:
            return {str(name): built(item, leaf) for name, item in items}
        case _:
            raise ValueError(f"{str(data)[:60]!r} is no value of a call")


def layout(tensor: torch.Tensor) -> list[Any]:
    """What of a tensor among the arguments decides which capture fits. Raises Untold."""
    plain = tensor.layout is torch.strided and not tensor.is_quantized
    if not plain or tensor.is_conj() or tensor.is_neg() or tensor.is_inference():
        raise Untold("a tensor of another layout is passed")
    if any(hasattr(tensor, name) for name in _DYNAMOS):
        raise Untold("a tensor is passed whose sizes vary")
    return [
        type(tensor).__name__,
        str(tensor.dtype),
        list(tensor.shape),
        list(tensor.stride()),
        str(tensor.device),
        tensor.requires_grad,
    ]


_DYNAMOS = (
    "_dynamo_dynamic_indices",
    "_dynamo_weak_dynamic_indices",
    "_dynamo_unbacked_indices",
    "_dynamo_hint_overrides",
)
"""What `torch._dynamo.mark_dynamic` and its like leave in a tensor."""


def called(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], list[torch.Tensor]]:
    """A call as data, and its tensors in order. Raises Untold, also where two are the same."""
    tensors: list[torch.Tensor] = []

    def leaf(tensor: torch.Tensor) -> list[Any]:
        tensors.append(tensor)
        return layout(tensor)

    data = [flattened(tuple(args), leaf), flattened(dict(kwargs), leaf)]
    if len({id(t) for t in tensors}) != len(tensors):
        raise Untold("one tensor is passed twice")
    return data, tensors
