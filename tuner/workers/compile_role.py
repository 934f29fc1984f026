"""The compile role: a group and a config to machine code in Triton's own cache on disk, a group's
configs in the order of the cost model, and a graph's covers.

The worker that measures compiles the same text with the same options and finds it there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ...planner.costs.device import DeviceProfile
from ...planner.covers.pricing import is_left
from ...planner.errors import Refusal
from ...planner.graph import graph as graphs
from ...planner.groups.group import GroupContent, copies_in
from ...planner.lower import lower
from ...planner.lowerings.triton import space_for
from ...planner.runtime.machine_code.compile import CompileFailed, Target, compile_kernel, resources
from ...planner.runtime.machine_code.launch import build_launcher, plain
from ...planner.space.space import space_of
from ..trial.outcome import Miscompiled, Rejected, to_json
from ..trial.wire import config_from_json, config_to_json
from .covering import Covering
from .kernels_ahead import SOURCE
from .ranking import Ranking


def handle(request: Mapping[str, Any]) -> dict[str, Any]:
    """{"group", "config", "capability"} to {"registers", ...}, or to a failure; with "aligned":
    false for buffers at any address. {"rank", "profile"} to a ranking, with "first", the config to
    try first; {"cover", "profile", "count"} to covers, with "groups", those of the best one that
    kernels of ours may run; {"kernel", "aligned", "capability"}, a kernel's text, to {}."""
    if "kernel" in request:
        return _compiled(request)
    if "rank" in request:
        return _ranked(request)
    if "cover" in request:
        return _covered(request)
    group = graphs.from_json(request["group"])
    program = lower(group, config_from_json(request["config"]))
    if isinstance(program, Refusal):
        return to_json(Rejected(str(program)))
    target = Target(capability=request["capability"])
    start = time.perf_counter()
    try:
        if request.get("aligned", True):
            compiled = [compile_kernel(kernel, target) for kernel in program.kernels]
        else:
            others = [plain(kernel)[0] for kernel in program.kernels]
            compiled = [compile_kernel(kernel, target, False) for kernel in others]
        taken = time.perf_counter() - start
        for kernel in compiled:
            build_launcher(kernel)
        used = [resources(one) for one in compiled]
    except CompileFailed as error:
        return to_json(Miscompiled(str(error), error.transient))
    return {
        "registers": max(r.registers for r in used),
        "spill_bytes": max(r.spill_bytes for r in used),
        "shared_bytes": max(r.shared_bytes for r in used),
        "compile_s": taken,
        "kernels": len(used),
    }


def _compiled(request: Mapping[str, Any]) -> dict[str, Any]:
    source = SOURCE.validate_python(request["kernel"])
    try:
        target = Target(capability=request["capability"])
        build_launcher(compile_kernel(source, target, request["aligned"]))
    except CompileFailed as error:
        return to_json(Miscompiled(str(error), error.transient))
    return {}


def _ranked(request: Mapping[str, Any]) -> dict[str, Any]:
    space = space_of(graphs.from_json(request["rank"]), DeviceProfile.from_json(request["profile"]))
    # The parent has made the same space: it asks for none that is refused.
    assert not isinstance(space, Refusal), space
    found = Ranking.of(space)
    first = config_to_json(found.seeds[0][0]) if found.seeds else None
    return found.to_json() | {"first": first}


def _covered(request: Mapping[str, Any]) -> dict[str, Any]:
    profile = DeviceProfile.from_json(request["profile"])
    graph = graphs.from_json(request["cover"])
    found = Covering.of(graph, profile, request["count"])
    groups = found.covers[0].groups
    both = zip(groups, copies_in(graph, groups), strict=True)
    parts = [GroupContent.of(graph, *each) for each in both]
    ours = {p.key: p.group for p in parts if not is_left(p) and _has_configs(p, profile)}
    told = [
        {"key": graphs.kernel_key(group), "data": graphs.to_json(group, graphs.varying_to_json)}
        for group in ours.values()
    ]
    return found.to_json() | {"groups": told}


def _has_configs(part: GroupContent, profile: DeviceProfile) -> bool:
    return not isinstance(space_for(part, profile), Refusal)
