"""One group of a plan as a script that runs alone: the kernel, the same work by eager, a check."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import replace
from textwrap import indent

from .codegen import numpy_functions
from .errors import PlanError
from .graph.graph import INPUT, Arg, Graph, Ref, Symbol
from .graph.ops import is_item
from .groups.group import subgraph
from .module import print_module
from .plan import GroupPlan, Plan

_OPERATOR = re.compile(r"(aten|prims)(\.[A-Za-z_]\w*){2}")
_WORD = re.compile(r"[A-Za-z_]\w*")
_DEFINED = re.compile(r"^def (\w+)\(", re.MULTILINE)


_OVERLAP = "tl.extra.cuda.gdc_"
"""Instructions for launches that overlap."""

_PLACE = """\
import os

# TRITON_INTERPRET=1 runs the kernel on the CPU, slowly.
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
if DEVICE == "cuda" and not torch.cuda.is_available():
    raise SystemExit("there is no CUDA device: TRITON_INTERPRET=1 runs the kernel on the CPU")
"""

_STAND_INS = """

if DEVICE == "cpu":
    import types

    libdevice = types.SimpleNamespace(**stand_ins())
    globals().update({{name: vars(libdevice)[name] for name in {names!r}}})
"""
"""What the interpreter has no code for, libdevice and inline assembly, is NumPy's there."""

_MAIN = '''

def widened(tensor):
    return tensor.double() if tensor.is_floating_point() else tensor


def error(found, exact):
    """Root mean square of the difference where both are finite."""
    difference = widened(found) - widened(exact)
    finite = difference[torch.isfinite(difference)]
    return float(finite.pow(2).mean().sqrt()) if finite.numel() else 0.0


def check(found, wanted, exact):
    """Whether each output errs at most twice as much as eager's own, measured from float64, and is
    finite where eager is."""
    good = True
    for place, (ours, own, true) in enumerate(zip(found, wanted, exact)):
        a, b = error(ours, true), error(own, true)
        scale = max(error(true, torch.zeros_like(true)), 1e-30)
        if ours.is_floating_point():
            least = 4 * torch.finfo(ours.dtype).eps * scale
            fine = a <= 2 * b + least
        else:
            fine = bool((ours == own).all())
        finite = [torch.isfinite(widened(value)) for value in (ours, own)]
        fine = fine and bool((finite[0] == finite[1]).all())
        verdict = "ok" if fine else "WRONG"
        print(f"output {place}: error {a:.3g}, eager's {b:.3g}, size {scale:.3g}: {verdict}")
        good = good and fine
    return good


def microseconds(function, inputs):
    """Median of 50 runs, each with a cold L2 cache."""
    flush = torch.empty(64 << 20, dtype=torch.int32, device=DEVICE)
    laps = []
    for _ in range(53):
        flush.zero_()
        start, end = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        start.record()
        function(*inputs)
        end.record()
        torch.cuda.synchronize()
        laps.append(start.elapsed_time(end) * 1e3)
    return sorted(laps[3:])[25]


if __name__ == "__main__":
    torch.manual_seed(0)
    kernel, make = EXAMPLES[0]
    inputs = make()
    exact = eager(*map(widened, inputs))
    good = check(kernel(*inputs), eager(*inputs), exact)
    if DEVICE == "cuda":
        for name, function in (("kernel", kernel), ("eager", eager)):
            print(f"{name}: {microseconds(function, inputs):.1f} us")
    raise SystemExit(not good)
'''


def standalone(graph: Graph, plan: Plan, group: GroupPlan) -> str:
    """Python text that needs torch and Triton alone. graph: that of the group's nodes. Raises
    PlanError for a group that cannot be written so."""
    part = subgraph(graph, group.nodes, group.copies).graph
    module = print_module(graph, replace(plan, groups=(group,)), main="")
    module = module.replace('device="cuda"', "device=DEVICE")
    # Alone, no kernel overlaps with another; and the interpreter has no such instruction.
    module = "\n".join(line for line in module.split("\n") if _OVERLAP not in line)
    head, rest = module.split("import torch\n", 1)
    return f"{head}import torch\n{_PLACE}\n{rest}{_stand_ins(rest)}\n\n{_eager(part)}{_MAIN}"


def _stand_ins(module: str) -> str:
    """Functions of NumPy in place of libdevice and of the module's functions around it."""
    text = inspect.getsource(numpy_functions).replace("from __future__ import annotations\n", "", 1)
    names = [name for name in _DEFINED.findall(module) if hasattr(numpy_functions, name)]
    if not names and "libdevice." not in module:
        return ""
    body = indent(text.rstrip(), "    ")
    return f"\n\ndef stand_ins():\n{body}\n    return locals()\n{_STAND_INS.format(names=names)}"


def _eager(part: Graph) -> str:
    """The group's operations, one after the other, as a function of its inputs."""
    names = ", ".join(f"v{i}" for i in part.inputs)
    lines = [f"def eager({names}):"]
    for node in part.nodes:
        if node.op == INPUT:
            continue
        arguments = [*map(_text, node.args), *(f"{_word(k)}={_text(v)}" for k, v in node.kwargs)]
        if is_item(node):
            lines.append(f"    v{node.id} = {arguments[0]}[{arguments[1]}]")
            continue
        if not _OPERATOR.fullmatch(node.op):
            raise PlanError(f"{node.op!r} is no operation of torch's own: no script can run it")
        lines.append(f"    v{node.id} = torch.ops.{node.op}({', '.join(arguments)})")
    outputs = ", ".join(f"v{o}" for o in part.outputs if o is not None)
    return "\n".join([*lines, f"    return [{outputs}]\n"])


def _text(value: Arg) -> str:
    if isinstance(value, Ref):
        return f"v{value.node}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, Symbol):
        if value.kind == "device":
            return "DEVICE" if value.name == "graph" else repr(value.name)
        if value.kind in ("dtype", "layout", "memory_format"):
            return f"torch.{_word(value.name)}"
        raise PlanError(f"an operation with a {value.kind} cannot be run by itself")
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else f"float({str(float(value))!r})"
    if isinstance(value, int) and not isinstance(value, bool):
        return repr(int(value))
    return repr(value)


def _word(name: str) -> str:
    """A name that may stand in Python text: what comes from a store is data."""
    if not _WORD.fullmatch(name):
        raise PlanError(f"{name!r} in the stored graph is no name: tune the model again")
    return name
