"""A plan's generated kernels as a module that runs alone, for people to read."""

from __future__ import annotations

from .codegen.source import Buffer, KernelSource, Program
from .errors import PlanError, Refusal
from .graph.dtypes import FLOAT8, is_float
from .graph.graph import Graph, TensorType
from .groups.group import subgraph
from .lower import lower
from .lowerings.nested import groups_within
from .plan import GroupPlan, Plan

_MAIN = """

if __name__ == "__main__":
    for function, inputs in EXAMPLES:
        outputs = function(*inputs())
        torch.cuda.synchronize()
        print(function.__name__, *(tuple(t.shape) for t in outputs))
"""


def print_module(graph: Graph, plan: Plan, main: str = _MAIN) -> str:
    """Python text: for every generated group its kernels and a function that launches them, and
    a main part, which by default runs each on random inputs. Raises PlanError when the plan is of
    another graph or of another version of the code."""
    imports = {"import torch", "import triton", "import triton.language as tl"}
    sections, examples = [], []
    for found in groups_within(graph, plan):
        group, number = found.group, found.number
        if group.config is None:
            sections.append(_comment(f"group {number}: {group.lowering} {group.options}"))
            continue
        part = subgraph(found.graph, group.nodes, group.copies).graph
        program = lower(part, group.config)
        if isinstance(program, Refusal):
            raise PlanError(f"group {number} has no kernel ({program}); tune the model again")
        for kernel in program.kernels:
            lines = kernel.text.splitlines()
            imports |= {line for line in lines if line.startswith(("import ", "from "))}
            if any(buffer.descriptor for buffer in kernel.buffers):
                imports.add("from triton.tools.tensor_descriptor import TensorDescriptor")
        sections.append(_section(number, group, part, program))
        inputs = ", ".join(_sample(_type(part, i)) for i in part.inputs)
        examples.append(f"    ({_function(number)}, lambda: [{inputs}]),")
    listed = "EXAMPLES = [\n" + "\n".join(examples) + "\n]" if examples else "EXAMPLES = []"
    header = _comment(f"Plan of graph {plan.graph_key}; evidence: {plan.evidence}.") + "\n\n"
    return header + "\n".join(sorted(imports)) + "\n\n" + "\n\n".join([*sections, listed]) + main


def _comment(text: str) -> str:
    """A comment of one line, whatever the text: it may come from a store, and is data."""
    return "# " + "".join(c if c.isprintable() else "?" for c in text).rstrip()


def _plain(number: str) -> str:
    return number.replace(".", "_")


def _function(number: str) -> str:
    return f"group_{_plain(number)}"


def _section(number: str, group: GroupPlan, part: Graph, program: Program) -> str:
    nodes = ", ".join(map(str, group.nodes))
    title = f"{_comment(f'group {number}: nodes {nodes}')}\n{_comment(str(group.config))}\n"
    kernels = "\n\n".join(_kernel(kernel, number) for kernel in program.kernels)
    return f"{title}{kernels}\n\n\n{_launcher(number, part, program)}"


def _kernel(kernel: KernelSource, number: str) -> str:
    lines = [x for x in kernel.text.splitlines() if not x.startswith(("import ", "from "))]
    text = "\n".join(lines).strip("\n")
    return text.replace(f"def {kernel.name}(", f"def {_name(kernel, number)}(")


def _name(kernel: KernelSource, number: str) -> str:
    return f"{kernel.name}_g{_plain(number)}"


def _launcher(number: str, part: Graph, program: Program) -> str:
    names = [f"in{i}" for i in range(len(part.inputs))]
    lines = [f"def {_function(number)}({', '.join(names)}):"]
    for i, node in enumerate(part.inputs):
        lines.append(f"    # in{i}: {_type(part, node)} strides {_type(part, node).stride}")
    for i, output in enumerate(part.outputs):
        if output is not None:
            lines.append(f"    out{i} = {_empty(_type(part, output))}")
    lines += [f"    tmp{i} = {_empty(tensor)}" for i, tensor in enumerate(program.temporaries)]
    for kernel in program.kernels:
        numbers = (repr(scalar.value) for scalar in kernel.scalars)
        arguments = ", ".join([*map(_argument, kernel.buffers), *numbers])
        options = f"num_warps={kernel.num_warps}, num_stages={kernel.num_stages}"
        lines.append(f"    {_name(kernel, number)}[({kernel.grid},)]({arguments}, {options})")
    outputs = ", ".join(f"out{i}" for i in range(len(part.outputs)))
    return "\n".join([*lines, f"    return [{outputs}]"])


def _argument(buffer: Buffer) -> str:
    name, found = f"{buffer.kind}{buffer.index}", buffer.descriptor
    if found is None:
        return name
    begin = f"{name}.storage_offset() + {found.offset}"
    base = f"{name}.as_strided({found.shape}, {found.stride}, {begin})"
    layout = ", ".join(str(list(of)) for of in (found.shape, found.stride, found.block))
    return f"TensorDescriptor({base}, {layout})"


def _empty(tensor: TensorType) -> str:
    strided = f"{tensor.shape}, {tensor.stride}, dtype=torch.{tensor.dtype}"
    return f'torch.empty_strided({strided}, device="cuda")'


def _sample(tensor: TensorType) -> str:
    """Random data; integers and bools small enough for any use."""
    if tensor.dtype in FLOAT8:
        return f"{_empty(tensor)}.copy_(torch.randn({tensor.shape}))"
    fill = ".normal_()" if is_float(tensor.dtype) else ".random_(0, 2)"
    return _empty(tensor) + fill


def _type(graph: Graph, node: int) -> TensorType:
    found = graph.nodes[node].type
    assert found is not None
    return found
