"""Graphs that were opened before: from Dynamo's graph to ours without AOTAutograd.

AOTAutograd and our rewrites take a second for a model of twelve layers, in every new process, and
give the same each time. So what they gave is kept as a file beside Triton's machine code: the
graph as JSON data, as a store keeps it, by a digest of all that it follows from. That is Dynamo's
graph, what is known of its inputs, torch's settings and the versions of torch and of this package.
A signed bundle carries it to other machines.

Only inference is kept, and of that only graphs in which no operation writes or is random. They run
by groups only if AOTAutograd's wrapper around them was seen to do nothing. All else goes the long
way. Nothing of a file is executed: its graph may name operations without side effects, and has to
fit the inputs and results that Dynamo's graph has. PLANNER_CAPTURE=again has a process go the long
way always.
"""

from __future__ import annotations

import hashlib
import json
import logging
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch._functorch import config

from ...capture.capture import CONSTANT, Captured, outputs_of
from ...graph.graph import INPUT, ITEM, Graph, Node, Numerics, TensorType, from_json, key, to_json
from ...versions import versions
from ..execution.modules import captured_of
from . import kept_files

log = logging.getLogger(__name__)

VARIABLE = "PLANNER_CAPTURE"

_NOT_TO_BE_KEPT = "null"
"""Stands for a graph that was looked at and cannot be kept."""

_MODULES: tuple[Any, ...] = (
    torch,
    F,
    torch._C._nn,
    operator,
    torch.special,
    torch.linalg,
    torch.amp.autocast_mode,  # Rotary embeddings switch autocast off.
    torch._C,
)
"""Where the functions are that a Dynamo graph may call."""

_MOST_NUMBERS = 1024
"""Of a constant."""

_FOLDER_OF_TORCH = f"{Path(torch.__file__).parent}{os.sep}"

_NAME_SPACES = ("aten", "prims", "fusionplan")
"""Of the operations of a kept graph."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A graph as it was opened before. runs_whole: it may only be asked for a plan, and run as a
    whole in the way that the plan says."""

    captured: Captured
    runs_whole: bool


@dataclass(frozen=True, slots=True)
class OpenedBefore:
    """A Dynamo graph and where is kept what it was opened into. key: see `_known`; carried: the
    same on other machines, "" where it is not asked for; given: what a bundle has, by such keys.
    The inputs themselves are not held, for it may outlive the call that they are of."""

    gm: fx.GraphModule
    types: tuple[TensorType, ...]
    devices: frozenset[torch.device]
    key: str
    carried: str = ""
    given: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(
        gm: Any, inputs: Sequence[Any], numerics: Numerics, given: Mapping[str, str] | None = None
    ) -> OpenedBefore | None:
        """None where the graph is none of those that are kept."""
        if os.environ.get(VARIABLE) == "again":
            return None
        if not isinstance(gm, fx.GraphModule) or _is_in_a_mode():
            return None
        try:
            known = _known(gm, inputs, numerics)
        except Exception:  # whatever the user's inputs raise, the model must run
            log.debug("a graph is opened in every process", exc_info=True)
            return None
        if known is None:
            return None
        types = tuple(TensorType(*_type(x)) for x in inputs)
        carried = ""
        if given or kept_files.recording() is not None:
            carried = _digest(known | {"package": kept_files.contents()})
        devices = frozenset(x.device for x in inputs)
        return OpenedBefore(gm, types, devices, _digest(known), carried, given or {})

    def found(self) -> Kept | None:
        """None where there is nothing, or nothing that fits."""
        if kept_files.recording() is not None:
            return None
        for carried in (False, True):
            try:
                opened = self.given.get(self.carried, "") if carried else kept_files.read(self.key)
                if opened not in ("", _NOT_TO_BE_KEPT):
                    return self._opened(json.loads(opened))
            except Exception as error:  # noqa: BLE001 - whatever it holds, the model must run
                log.info("what is kept of a graph, opened before, cannot be used: %s", error)
        return None

    def keep(self, captured: Captured, runs_whole: bool = False) -> None:
        """For processes to come, or that this cannot be kept. runs_whole: the plan says that the
        graph runs in one way, so that nobody has seen what AOTAutograd's wrapper does."""
        to_carry = kept_files.recording()
        with suppress(Exception):  # as in `found`
            if to_carry is None and kept_files.read(self.key) == _NOT_TO_BE_KEPT:
                return
        try:
            text = self._text(captured, runs_whole)
        except Exception as error:  # noqa: BLE001 - as in `found`
            log.info("a graph is opened in every process: %s", error)
            text = _NOT_TO_BE_KEPT
        if to_carry is None:
            kept_files.write(self.key, text)
        elif text != _NOT_TO_BE_KEPT:
            to_carry[self.carried] = text

    def _text(self, captured: Captured, runs_whole: bool) -> str:
        """Raises ValueError or PlanError for what `found` would not give back."""
        if captured.updates:
            raise ValueError("it writes into its inputs")
        opened = {
            "graph": to_json(captured.graph),
            "graph_key": key(captured.graph),
            "device": str(captured.device),
            "lines": self._lines(captured),
            "constants": dict(_constants(captured)),
            "runs_whole": runs_whole,
        }
        text = json.dumps(opened, allow_nan=False)
        if self._opened(json.loads(text)).captured.graph != captured.graph:
            raise ValueError("its graph is more than data")
        return text

    def _lines(self, captured: Captured) -> list[int | None]:
        """For each node, the node of Dynamo's graph whose lines of the user's code are its own."""
        own: dict[str, int] = {}
        for place, node in enumerate(self.gm.graph.nodes):
            own.setdefault(str(node.meta.get("stack_trace") or ""), place)
        return [own.get(str(n.meta.get("stack_trace") or "")) for n in captured.fx_nodes]

    def _opened(self, data: Mapping[str, Any]) -> Kept:
        """Raises an exception of some kind for data that is no graph, or none of these inputs and
        results."""
        graph, device = from_json(data["graph"]), torch.device(data["device"])
        if key(graph) != data["graph_key"]:
            raise ValueError("its graph is another")
        if device not in self.devices:
            raise ValueError(f"it is for {device}")
        _check_operations(graph)
        constants = {int(i): values for i, values in data["constants"].items()}
        held = {i: _constant(graph.nodes[i], values, device) for i, values in constants.items()}
        captured = captured_of(graph, device, inputs_alone=True, constants=held)
        for node in captured.fx_nodes:
            _check_call(node)
        types = [node.type for node in graph.nodes]
        if tuple(types[i] for i in graph.inputs) != self.types:
            raise ValueError("its inputs are others")
        results = [o.meta["example_value"] for o in outputs_of(self.gm.graph)]
        made = [types[o] for o in graph.outputs if o is not None]
        if made != [TensorType(*_type(x)) for x in results]:
            raise ValueError("its results are others")
        ours = list(self.gm.graph.nodes)
        for node, line in zip(captured.fx_nodes, data["lines"], strict=True):
            if line is not None:
                node.meta["stack_trace"] = ours[line].meta.get("stack_trace")
        return Kept(captured, data["runs_whole"] is not False)


def _constants(captured: Captured) -> Iterator[tuple[str, list[Any]]]:
    """The numbers of tensors that the user's code writes down; Dynamo's graph, and so the key, has
    them. Raises ValueError for what is more than a few numbers, in order."""
    for node, source in zip(captured.graph.nodes, captured.fx_nodes, strict=True):
        if node.op == CONSTANT:
            value = operator.attrgetter(str(source.target))(captured.gm)
            plain = type(value) is torch.Tensor and not value.requires_grad
            if not plain or not value.is_contiguous() or value.numel() > _MOST_NUMBERS:
                raise ValueError(f"{node.name} is more than a few numbers")
            yield str(node.id), value.flatten().tolist()


def _constant(node: Node, values: Sequence[Any], device: torch.device) -> torch.Tensor:
    """Raises ValueError or TypeError where that is no constant."""
    if node.op != CONSTANT or node.args or node.type is None:
        raise ValueError(f"{node.name} is no constant")
    dtype = getattr(torch, node.type.dtype)
    made = torch.tensor(values, dtype=dtype, device=device).reshape(node.type.shape)
    if made.stride() != node.type.stride:
        raise ValueError(f"{node.name} does not lie in order")
    return made


def _check_operations(graph: Graph) -> None:
    """Raises ValueError for a graph with a value that is no plain tensor, but for the results of an
    operation with several."""
    for node in graph.nodes:
        several = [graph.nodes[user].op == ITEM for user in graph.users(node.id)]
        if node.type is None and not (several and all(several) and node.op != INPUT):
            raise ValueError(f"{node.name} is no plain tensor")
    if any(o is None or graph.nodes[o].type is None for o in graph.outputs):
        raise ValueError("a result is no plain tensor")


def _check_call(node: fx.Node) -> None:
    """Raises ValueError for an operation that has effects, or may have: it writes, it is random, or
    somebody else has made it."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return  # An input, or one of the results of an operation.
    ours = target.namespace in _NAME_SPACES
    if not ours or target._schema.is_mutable or _is_random(node, target):
        raise ValueError(f"{target} may have effects")


def _is_random(node: fx.Node, target: torch._ops.OpOverload) -> bool:
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    names = [argument.name for argument in target._schema.arguments]
    if "dropout_p" not in names:
        return True
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return bool(given.get("dropout_p", 0.0) != 0.0)


def _known(gm: fx.GraphModule, inputs: Sequence[Any], numerics: Numerics) -> Any:
    """All that AOTAutograd's graph follows from, as plain data; None where it cannot be said."""
    given, operations = _given(inputs), _operations(gm)
    stamp, settings = kept_files.stamp(), _settings()
    if given is None or operations is None or stamp is None or settings is None:
        return None
    devices = sorted({x.device for x in inputs}, key=str)
    return {
        "operations": operations,
        "inputs": given,
        "numerics": numerics,
        "devices": [_about(device) for device in devices],
        "versions": versions(),
        "torch": str(torch.version.git_version),
        "torch's settings": settings,
        "package": stamp,
        "defaults": [str(torch.get_default_dtype()), str(torch.get_default_device())],
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
    }


def _settings() -> dict[str, str] | None:
    """AOTAutograd's; None where one is an object of the user's."""
    found: Mapping[str, Any] = config.get_config_copy()
    if not all(type(v) in (*_PLAIN, type(None), float, list, dict) for v in found.values()):
        return None
    return {name: repr(value) for name, value in found.items()}


def _is_in_a_mode() -> bool:
    """Whether the graph is traced under something that changes what its operations are."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or any(map(torch.is_autocast_enabled, ("cpu", "cuda")))
    )


def _given(inputs: Sequence[Any]) -> list[Any] | None:
    """The inputs, and which of them share memory; None where one is no plain tensor, or gradients
    are recorded."""
    places: dict[int, int] = {}
    found: list[Any] = []
    for place, x in enumerate(inputs):
        if type(x) not in (torch.Tensor, torch.nn.Parameter) or x.layout is not torch.strided:
            return None
        if x.requires_grad and torch.is_grad_enabled():
            return None
        if x.is_quantized or x.is_conj() or x.is_neg():
            return None
        memory = places.setdefault(x.untyped_storage()._cdata, place)
        flags = type(x).__name__, x.requires_grad, x.is_inference()
        found.append([*_type(x), str(x.device), *flags, memory])
    return found if found else None


def _type(x: Any) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    return tuple(x.shape), tuple(x.stride()), str(x.dtype).removeprefix("torch.")


def _operations(gm: fx.GraphModule) -> list[Any] | None:
    """Dynamo's graph; None where sizes vary, or where it has more than calls of torch's."""
    number = {node: i for i, node in enumerate(gm.graph.nodes)}
    found: list[Any] = []
    try:
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                _check_static(node.meta["example_value"])
                found.append("input")
                continue
            target: Any = node.target
            if node.op == "call_function":
                target = _function(node.target)
            elif node.op not in ("call_method", "output"):
                raise ValueError(f"{node.op} is not kept")
            found.append([node.op, target, _plain(node.args, number), _plain(node.kwargs, number)])
    except (ValueError, KeyError) as error:
        log.debug("a graph is opened in every process: %s", error)
        return None
    return found


def _check_static(value: Any) -> None:
    numbers = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    if not all(type(n) is int for n in numbers):
        raise ValueError("sizes vary")


def _function(target: Any) -> str:
    """The name of a function. Raises ValueError for one that is not torch's, or an operator's."""
    if isinstance(target, torch._ops.OpOverload) and target.namespace in _NAME_SPACES:
        return f"torch.ops.{target}"
    name = getattr(target, "__name__", "")
    code = getattr(target, "__code__", None)
    if code is not None and not code.co_filename.startswith(_FOLDER_OF_TORCH):
        raise ValueError(f"{target} was put in the place of torch's")
    for module in _MODULES:
        if getattr(module, name, None) is target:
            return f"{module.__name__}.{name}"
    raise ValueError(f"{target} is not torch's")


def _plain(value: Any, number: Mapping[fx.Node, int]) -> Any:
    """An argument as plain data that tells it from all others. Raises ValueError for an object of
    the user's."""
    if isinstance(value, fx.Node):
        return ["node", number[value]]
    if value is None or (isinstance(value, (bool, int, str)) and type(value) in _PLAIN):
        return value
    if type(value) in (float, complex):
        return [type(value).__name__, repr(value)]
    if type(value) in _NAMED:
        return [type(value).__name__, str(value)]
    if isinstance(value, (tuple, list)):  # torch.Size, too
        return [type(value).__name__, [_plain(v, number) for v in value]]
    if type(value) is slice:
        return ["slice", _plain((value.start, value.stop, value.step), number)]
    if isinstance(value, Mapping):
        return ["dict", [[_plain(k, number), _plain(v, number)] for k, v in value.items()]]
    raise ValueError(f"an argument is a {type(value).__name__}")


_PLAIN = (bool, int, str)
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format, type(...))


def _about(device: torch.device) -> list[Any]:
    """What torch may choose operations by."""
    if device.type != "cuda":
        return [str(device)]
    found = torch.cuda.get_device_properties(device)
    return [str(device), found.name, found.major, found.minor]


def _digest(known: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
