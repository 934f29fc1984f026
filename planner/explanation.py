"""The data of an explanation of a plan.

`Explanation.to_json` gives what `planner explain --json` prints. Its keys are the names of the
fields below; names that end in _s are seconds, in bytes or nbytes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..markup.plan_card import MOST_GROUPS, GroupRow, PlanCard, cards_html
from ..terminal import duration
from .config import Config
from .costs.cost import Cost
from .costs.least import Least
from .graph.graph import TensorType
from .plan import Chosen, Evidence, LoweringName
from .stream.online import Proof


@dataclass(frozen=True, slots=True)
class Operation:
    """A node that does work. type: None where its value is no single tensor; source: the line of
    the user's code it comes from, where that is known; copied: every group that reads it computes
    it again."""

    node: int
    name: str
    op: str
    type: str | None
    source: str = ""
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor by the name of its node; nbytes: of its distinct elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @staticmethod
    def of(name: str, tensor: TensorType) -> Tensor:
        return Tensor(name, tensor.dtype, tensor.shape, tensor.nbytes)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Axis:
    """A tile axis. role: "grid", "loop" or "held"; block: its elements in one tile."""

    name: str
    extent: int
    role: str
    block: int


@dataclass(frozen=True, slots=True)
class Denied:
    """A refused derivation: the rule, and the step that failed."""

    subject: str
    rule: str
    reason: str

    def __str__(self) -> str:
        """For people. A layout may have the name of its rule, which is said once."""
        about = self.rule if self.subject == self.rule else f"{self.subject}: {self.rule}"
        return f"{about}: {self.reason}"


@dataclass(frozen=True, slots=True)
class MaskedAxis:
    """The part of a looped axis that masks keep: only where all conditions hold does a tile count;
    that is `turns` of its `whole` tiles on average."""

    axis: str
    conditions: tuple[str, ...]
    turns: float
    whole: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch. nest: as it prints; text: the generated module, where it was asked for.
    copied_by: the name of a kernel launched before it, which copies rows of its inputs so that it
    can read whole vectors; empty where none is needed. Its text is part of `text`."""

    name: str
    nest: str
    axes: tuple[Axis, ...]
    bounds: tuple[MaskedAxis, ...]
    programs: int
    predicted: Cost
    text: str = ""
    copied_by: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured figures of a group's config; None where the measurement did not give one."""

    seconds: float | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Otherwise:
    """A group or node that is not generated: `refusal` where it has no kernel, else the model's
    seconds of the best generated kernel. aten_s: those of ATen, one operation after the other;
    None where the model knows nothing of one of them."""

    refusal: Denied | None
    generated_s: float | None
    aten_s: float | None


@dataclass(frozen=True, slots=True)
class GroupExplanation:
    """One group of the plan, `number` as `planner show` counts them.

    kernels: none where the group is not generated, then `otherwise` says why. derived, denied:
    what was derived for the folds over looped axes, and those that keep a sweep of their own.
    never_stored: the largest values that are neither input nor output: the largest of all, and
    the largest matrix product where that is another one. temporaries: what the kernels of a split
    hand on. layouts: those the group does not have. predicted: of all its kernels by the present
    model; predicted_s: as the plan has it. bodies: of a region, the graphs that stand for it and
    how often each runs in a call. least: what the device needs for it, whatever the kernels.
    sizes: where they vary, the configs of all of them, each after the sizes at which it runs;
    varying: those sizes as they are here.
    """

    number: int
    nodes: tuple[int, ...]
    operations: tuple[Operation, ...]
    lowering: LoweringName
    config: Config | None
    options: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    kernels: tuple[Kernel, ...]
    derived: tuple[Proof, ...]
    denied: tuple[Denied, ...]
    never_stored: tuple[Tensor, ...]
    temporaries: tuple[Tensor, ...]
    layouts: tuple[Denied, ...]
    predicted: Cost | None
    predicted_s: float | None
    measured: Measured
    otherwise: Otherwise | None = None
    bodies: tuple[tuple[int, Explanation], ...] = ()
    least: Least | None = None
    sizes: tuple[tuple[str, Config], ...] = ()
    varying: tuple[int, ...] = ()

    @property
    def launches(self) -> int:
        """Kernels of a call; of a group that is not generated, at least one."""
        return max(1, sum(1 + bool(kernel.copied_by) for kernel in self.kernels))


@dataclass(frozen=True, slots=True)
class UngroupedNode:
    """A node that is in no group and runs as ATen; `otherwise` says why. least: as a group's."""

    operation: Operation
    otherwise: Otherwise
    least: Least | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a boundary: a group by its number, or a node in no group (None)."""

    group: int | None
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Boundary:
    """Two neighbours that are not one kernel. edges: (node, node) pairs that join them: one reads
    the other, or both read the same value. refusal: why they cannot be one; else the model's
    seconds of one kernel and of both apart (None: one of them has no kernel of its own)."""

    left: Side
    right: Side
    edges: tuple[tuple[int, int], ...]
    refusal: Denied | None = None
    together_s: float | None = None
    apart_s: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """A whole plan. alone: nodes in no group. device: the profile that the costs are of. chosen:
    how the model chose its groups; None where the plan does not say. bucket: the sizes for which
    the plan holds, in words; "" where no size varies. least: what the device needs for the whole
    graph, each input read and each result written once."""

    graph_key: str
    device: str
    evidence: Evidence
    predicted_s: float | None
    measured_s: float | None
    groups: tuple[GroupExplanation, ...]
    alone: tuple[UngroupedNode, ...]
    boundaries: tuple[Boundary, ...]
    chosen: Chosen | None = None
    bucket: str = ""
    least: Least | None = None
    format: int = 1

    def __repr__(self) -> str:
        count = len(self.groups)
        about = [f"{count} group{'s' * (count != 1)}", self.evidence]
        about += [duration(self.predicted_s if self.measured_s is None else self.measured_s)]
        return f"<Explanation of graph {self.graph_key[:12]}: {'; '.join(about)}>"

    def _repr_html_(self) -> str:
        rows = tuple(
            GroupRow(
                group.number,
                " ".join(operation.name for operation in group.operations),
                group.lowering,
                str(group.config or group.options),
                group.launches,
                group.predicted_s,
                group.measured.seconds,
            )
            for group in self.groups[:MOST_GROUPS]
        )
        times = f"predicted {duration(self.predicted_s)}, measured {duration(self.measured_s)}"
        about = f"graph {self.graph_key[:12]} on {self.device}, evidence: {self.evidence}"
        more = len(self.groups) - len(rows)
        return cards_html([PlanCard("explanation", about, times, (), rows, more)])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; `from_json` turns it back into an equal explanation."""
        data: dict[str, Any] = _EXPLANATION.dump_python(self, mode="json")
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Explanation:
        """Inverse of `to_json`. Raises ValueError on data that is no explanation."""
        try:
            return _EXPLANATION.validate_python(dict(data))
        except ValidationError as error:
            raise ValueError(f"no explanation: {error.errors()[0]['msg']}") from error


_EXPLANATION: TypeAdapter[Explanation] = TypeAdapter(Explanation)
