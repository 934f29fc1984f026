"""Groups with products that ran far slower than the model expects, cut before each product.

Of a group with many operations one kernel may be all that there was time to try. Where that was
wrong, did not compile or spilled, the group would run one operation after the other, which may take
longer than all the rest of the model. A search that has time asks for another cover of the whole
graph, and measures it; this looks at such groups alone, and only at what stands before each
product as kernels of their own.
"""

from __future__ import annotations

from ...planner.covers import pricing
from ...planner.covers.growing import cut_edges
from ...planner.graph.graph import Graph
from ...planner.graph.ops import Contraction, row
from ...planner.groups.group import GroupContent, Groups, copied, subgraph, with_free_nodes
from ..records.findings import Findings
from .tuned_groups import Task, Tasks

SLOW = 1.5
"""A group that takes so many times the model's seconds is looked at in parts."""

FASTER = 1.3
"""So many times as fast as the group its parts have to be: most are not measured. Of a product with
what follows it the model's seconds are 13% off on average; of two products in one kernel they were
half of what two groups of ResNet-101 took."""


def with_slow_groups_split(groups: Groups, tasks: Tasks, findings: Findings) -> Groups:
    """The partition, each group of which a kernel was tried and none is fast in parts, where the
    parts take far less by what was measured or else by the model."""
    made: list[tuple[int, ...]] = []
    for nodes, task in zip(groups, tasks.all(groups), strict=True):
        best_s = findings.of(task.group.key).best_s or task.framework_s
        parts = _parts(nodes, task, tasks, findings, best_s) if best_s else ()
        made += parts if len(parts) > 1 else (nodes,)
    return tuple(made)


def _parts(
    nodes: tuple[int, ...], task: Task, tasks: Tasks, findings: Findings, best_s: float
) -> Groups:
    """Groups of which each product begins one; none where they are not much faster."""
    modelled, part = task.modelled, task.group.graph
    was_tried = findings.of(task.group.key).trials > 0
    if modelled is None or not was_tried or best_s < SLOW * modelled.seconds:
        return ()
    passed = _products_passed(part)
    cuts = (edge for edge in cut_edges(part) if passed[edge[0]] != passed[edge[1]])
    parts = tasks.cover.partition(part, frozenset(cuts))
    order = (*subgraph(tasks.graph, nodes).inputs, *sorted(nodes))
    is_copy = copied(tasks.graph)
    whole = ([order[n] for n in own if not is_copy[order[n]]] for own in parts)
    made = tuple(with_free_nodes(tasks.graph, own) for own in whole)
    return made if FASTER * _seconds(made, tasks, findings) <= best_s else ()


def _products_passed(graph: Graph) -> list[int]:
    """For each node the most products on a path to it, itself among them. What leads past a product
    to one of its readers alone, such as a norm's scale, counts as that reader."""
    is_product = [isinstance(row(node), Contraction) for node in graph.nodes]
    found: list[int] = []
    for node in graph.nodes:
        before = max((found[source] for source in node.inputs), default=0)
        found.append(before + is_product[node.id])
    for node in reversed(graph.nodes):
        users = graph.users(node.id)
        found[node.id] = min((found[u] - is_product[u] for u in users), default=found[node.id])
    return found


def _seconds(groups: Groups, tasks: Tasks, findings: Findings) -> float:
    total = 0.0
    for task in tasks.all(groups):
        group, known = task.group, findings.of(task.group.key).best_s
        part = GroupContent(group.key, group.graph)
        total += pricing.seconds(part, tasks.profile) if known is None else known
    return total
