"""`planner bisect`: the group in which a plan's numbers part from eager's."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..planner.errors import DeviceError
from . import render
from .captured import captured_model, note, opened_store
from .options import (
    DeviceOption,
    InputsOption,
    JsonOption,
    ModelArgument,
    ModelledOption,
    NumericsOption,
    StoreOption,
    TrainingOption,
    numerics_of,
)

if TYPE_CHECKING:
    from ..tuner.gate.bisect import GroupError

_SHOWN = 5
"""Operations of a group that are named."""


def bisect(
    model: ModelArgument,
    inputs: InputsOption = None,
    store: StoreOption = None,
    device: DeviceOption = None,
    training: TrainingOption = False,
    numerics: NumericsOption = "fast",
    modelled: ModelledOption = False,
    json: JsonOption = False,
) -> None:
    """Find the first group of a plan whose numbers are wrong.

    Each group runs on the inputs that it has in eager mode. Its error against float64 is printed
    beside the error of eager. The last line names the first group that breaks the accuracy rule.

    Needs a CUDA device, or Triton's interpreter (TRITON_INTERPRET=1) on a CPU.
    """
    with contextlib.ExitStack() as stack:
        opened = None if modelled else opened_store(store, stack)
        name, captured, place = captured_model(
            *(model, inputs, device, None), training=training, numerics=numerics_of(numerics)
        )
        # What the model's own code prints is no result of ours.
        with contextlib.redirect_stdout(sys.stderr):
            from ..planner.runtime.machine_code.compile import interpreted
            from ..tuner.gate.bisect import bisect as search
            from ..tuner.records.found_plan import found_plan

            if place.device.type != "cuda" and not interpreted():
                raise DeviceError(
                    "bisect runs kernels: it needs a CUDA device, or TRITON_INTERPRET=1 set before "
                    "planner starts, to run them in Triton's interpreter"
                )
            found = []
            for part in captured.parts:
                chosen = found_plan(part.captured.graph, place.profile, opened)
                errors = list(search(part.captured, chosen.plan, part.inputs))
                found.append((part.stage, chosen.key, note(chosen, place, opened), errors))
    first = next(((s, e) for s, _, _, errors in found for e in errors if e.fault), None)
    if json:
        plans = [
            {"stage": s, "plan_key": key, "note": told, "groups": list(map(_to_json, errors))}
            for s, key, told, errors in found
        ]
        render.print_json({"name": name, "plans": plans, "first": first and _to_json(first[1])})
        return
    for stage, _, told, errors in found:
        render.out().print(f"{name} {stage}: {told}", soft_wrap=True, markup=False)
        _print(errors)
    told = "no group is beyond the accuracy rule"
    if first is not None:
        told = f"first beyond the accuracy rule: group {first[1].number} of the {first[0]} graph: "
        told += first[1].fault
    render.out().print(told, soft_wrap=True, markup=False)


def _to_json(error: GroupError) -> dict[str, Any]:
    return asdict(error)


def _print(errors: list[GroupError]) -> None:
    figures = ("ours", "eager", "limit")
    table = render.table("group", "operations", "lowering", *figures, "verdict", right=figures)
    for error in errors:
        names = " ".join(error.operations[:_SHOWN])
        names += " ..." * (len(error.operations) > _SHOWN)
        numbers = [f"{n:.2g}" for n in (error.ours, error.eager, error.limit)]
        verdict = "beyond the rule" if error.fault else error.left_out or "ok"
        shown = ["-"] * len(numbers) if error.left_out else numbers
        table.add_row(str(error.number), names, error.lowering, *shown, verdict)
    render.out().print(table)
