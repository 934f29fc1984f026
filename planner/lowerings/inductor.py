"""A group, or a whole graph, compiled by torch.compile's own back end. `options`: the mode of
torch.compile ("" is its default mode).

Inductor is imported where it is called: a plan of kernels alone starts without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from ..capture.capture import Captured
from ..errors import PlanError
from ..graph.graph import INPUT, Graph
from ..plan import LoweringName
from .base import Boxed, GroupCall, GroupSite, WholeLowering

MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
"""Of torch.compile, the quickest to compile first."""

_OWN_GRAPHS = ("max-autotune", "reduce-overhead")


def mode_options(mode: str) -> dict[str, Any]:
    """Inductor's settings for a mode of torch.compile ("" is the default mode)."""
    from torch._inductor import list_mode_options

    try:
        return dict(list_mode_options(mode or "default"))
    except (RuntimeError, KeyError) as error:
        raise PlanError(f"torch.compile has no mode {mode!r}") from error


def compile_whole(gm: fx.GraphModule, inputs: Sequence[Any], mode: str) -> Callable[..., Any]:
    """A Dynamo graph exactly as `torch.compile(mode=mode)` would compile it."""
    from torch._inductor.compile_fx import compile_fx

    compiled: Any = compile_fx(gm, inputs, config_patches=mode_options(mode))
    return cast("Callable[..., Any]", compiled)


def compile_part(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    mode: str,
    *,
    entire: bool = False,
    rounds: bool = False,
) -> Boxed:
    """An ATen graph, with fake or symbolic inputs, that stands between other work: as
    `compile_whole`, but without CUDA graphs, which would copy its inputs. entire: it is all that
    AOTAutograd asked for. rounds: it rounds what eager rounds between operations."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes

    options = {**mode_options(mode), "triton.cudagraphs": False}
    if rounds:
        options["emulate_precision_casts"] = True
    fake_mode = next((m for x in inputs if (m := _fake_mode(x)) is not None), FakeTensorMode())
    context = TracingContext.try_get()
    if not entire or context is None or context.fake_mode is not fake_mode:
        # Inductor reports output strides to the context that it finds, for AOTAutograd to use.
        context = TracingContext(fake_mode)
    with config.patch(options), torch.no_grad(), tracing(context), fake_mode:
        opened = make_fx(
            fx.Interpreter(gm).run, decomposition_table=select_decomp_table(), tracing_mode="real"
        )(*inputs)
        _keep_strides(opened)
        joint_graph_passes(opened)
        with _disable_current_modes():
            compiled: Boxed = compile_fx_inner(opened, list(inputs), is_inference=True)
    return compiled


def compile_group(
    captured: Captured, nodes: Sequence[int], outputs: Sequence[int], mode: str
) -> Boxed:
    """The named nodes of a static graph as one Inductor call. Its inputs are the values that
    they read from outside, in order of their ids."""
    gm = _cut(captured, nodes, outputs)
    fakes = [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]
    return compile_part(gm, fakes, mode, rounds=captured.graph.numerics == "eager")


def _fake_mode(value: Any) -> FakeTensorMode | None:
    return getattr(value, "fake_mode", None)


def _keep_strides(gm: fx.GraphModule) -> None:
    """Outputs keep the strides that they were captured with; Inductor is free to change others."""
    output = next(n for n in reversed(gm.graph.nodes) if n.op == "output")
    values = output.args[0]
    assert isinstance(values, (tuple, list))
    visible = [i for i, v in enumerate(values) if isinstance(v, fx.Node)]
    output.meta["user_visible_output_idxs"] = visible


def _cut(captured: Captured, nodes: Sequence[int], outputs: Sequence[int]) -> fx.GraphModule:
    graph, fx_nodes = fx.Graph(), captured.fx_nodes
    inside = set(nodes)
    outer = sorted({i for n in nodes for i in captured.graph.nodes[n].inputs} - inside)
    copies: dict[fx.Node, fx.Node] = {}
    for i in outer:
        copies[fx_nodes[i]] = graph.placeholder(fx_nodes[i].name)
        copies[fx_nodes[i]].meta = dict(fx_nodes[i].meta)
    for i in sorted(inside):
        copies[fx_nodes[i]] = graph.node_copy(fx_nodes[i], copies.__getitem__)
    graph.output(tuple(copies[fx_nodes[o]] for o in outputs))
    return fx.GraphModule(captured.gm, graph)


class Inductor(WholeLowering):
    name: LoweringName = "inductor"
    takes_numbers = True
    slow = True
    said = "torch.compile (Inductor)"

    def options(self, group: Graph) -> tuple[str, ...]:
        return MODES

    def build(self, site: GroupSite) -> GroupCall:
        return GroupCall(site.compile(site.options))

    def owns_cuda_graphs(self, options: str) -> bool:
        return options in _OWN_GRAPHS

    def whole(self, gm: fx.GraphModule, inputs: Sequence[Any], options: str) -> Callable[..., Any]:
        return compile_whole(gm, inputs, options)

    def captured(self, captured: Captured, options: str) -> Callable[..., Any]:
        graph = captured.graph
        outputs = sorted({o for o in graph.outputs if o is not None})
        work = tuple(n.id for n in graph.nodes if n.op != INPUT)
        call = compile_group(captured, work, outputs, options)
        return lambda *inputs: call(list(inputs))

    def entire(self, gm: fx.GraphModule, inputs: Sequence[Any], options: str) -> Boxed:
        return compile_part(gm, inputs, options, entire=True)
