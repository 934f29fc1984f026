"""Every rule by which a fusion is refused and every warning, each with what to do about it.

The documentation prints both tables. Tests read the source: a rule or a warning that is not listed
here fails them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """why: what it means. cure: what the user can do; it may be that nothing is to be done."""

    why: str
    cure: str


class FusionplanWarning(UserWarning):
    """A model runs, but not as it was planned to; the text says why and what to do."""


_NOTHING = "Nothing to do: the planner chooses another layout or config, the same in every run."

RULES: Mapping[str, Advice] = {
    "apart": Advice(
        "No value spans the whole grid, so that programs would repeat each other's work.",
        "Nothing: the parts are kernels of their own, which costs one more launch.",
    ),
    "bodies": Advice(
        "A region needs one plan for each of its graphs, and some are missing.",
        "Nothing, unless the plan was edited by hand: then tune again.",
    ),
    "buffers": Advice(
        "The group reads and writes more than 40 tensors.",
        "Pass fewer tensors: stack small parameters into one. Else the group stays in parts.",
    ),
    "cast": Advice(
        "A conversion between these types has no expression in a kernel.",
        "Convert by way of a common type, such as float32. Else the operation runs as ATen.",
    ),
    "concat": Advice(
        "The tensors that are concatenated do not lie along one axis of the kernel.",
        "Write into slices of one result. Else the concatenation runs as ATen.",
    ),
    "config": Advice(
        "The config has no block for an axis, or one that its nest does not have.",
        "Nothing, unless the plan was edited by hand: then tune again.",
    ),
    "constant": Advice(
        "A constant of this kind cannot be written into a kernel.",
        "Pass it as a tensor. Else the operation runs as ATen.",
    ),
    "convex": Advice(
        "A path leaves the group and comes back: the kernel would wait for itself.",
        "Take what lies on the path into the kernel: often it is an operation that runs as ATen, "
        "which `planner explain` names.",
    ),
    "descriptor": Advice("No access of the kernel can be made by a descriptor.", _NOTHING),
    "dtype": Advice(
        "A kernel of ours has no such type (complex numbers, quantised types).",
        "Compute in a type that has kernels. Else the operation runs as ATen.",
    ),
    "empty": Advice(
        "There is nothing to iterate over, or an extremum of nothing.",
        "Leave the operation out for empty tensors. Eager decides what it gives.",
    ),
    "factor": Advice(
        "A reshape cuts across an axis, so one loop nest cannot serve both sides of it.",
        "Reshape so that whole axes are split or merged, or reshape at an end of the chain.",
    ),
    "flat": Advice("The axes cannot be merged into one, or there is only one.", _NOTHING),
    "held": Advice(
        "The reduced axes are too long to lie in the registers of one block.",
        "Nothing: the reduction is a loop, or it is split over several programs.",
    ),
    "indexed": Advice(
        "The group looks up by index in a value that it computes itself, or in a number, or a mask "
        "is the index.",
        "Nothing: what is looked up is stored by another kernel first.",
    ),
    "layout": Advice("The group has no such way to reduce, or to tile its axes.", _NOTHING),
    "loop": Advice(
        "There is nothing to loop over, or the loops would need each other.",
        "Nothing: another way to reduce is taken.",
    ),
    "online": Advice(
        "Two reductions of a row cannot be made in one sweep: no rule says how to correct the "
        "running result of one when that of the other changes.",
        "Write the formula in one of the usual forms (softmax, mean and variance, log-sum-exp); "
        "`planner explain` names the step that failed. Else the row is read once more.",
    ),
    "fold": Advice(
        "No call of the library computes a convolution with what follows it in this region.",
        "Nothing: what follows is a kernel of its own.",
    ),
    "opaque": Advice(
        "The table of operations has no row for this operation, so no kernel of ours holds it.",
        "Write it in operations that are known, or leave it: it runs as ATen.",
    ),
    "options": Advice(
        "A plan for a region names no size that can be read.",
        "Nothing, unless the plan was edited by hand: then tune again.",
    ),
    "output": Advice(
        "The group gives something that is no tensor, or writes nothing.",
        "Nothing: the operation runs as ATen.",
    ),
    "recompute": Advice(
        "Every block would compute a long reduction or a matrix product again that it shares with "
        "its neighbours.",
        "Nothing: the shared value is stored once by a kernel of its own.",
    ),
    "scan": Advice(
        "The scan cannot be in this kernel: it goes along one axis, held whole or in one loop.",
        "Nothing: it runs in a kernel of its own, or as ATen.",
    ),
    "shared": Advice("The tiles need more shared memory than a multiprocessor has.", _NOTHING),
    "size": Advice(
        "The group has more than 96 operations, or its accesses need too many values.",
        "Nothing: it is split where least is stored between the parts.",
    ),
    "slow": Advice(
        "The cost model expects this config to take many times the time of the best one.", _NOTHING
    ),
    "spills": Advice(
        "The cost model expects far more values than a thread has registers.", _NOTHING
    ),
    "split": Advice("No reduction is long enough to be cut, or one does not divide.", _NOTHING),
    "subtiles": Advice("No matmul has columns that can be computed in parts.", _NOTHING),
    "tile": Advice("A block would hold more elements than its registers can.", _NOTHING),
    "transposed": Advice(
        "A computed value meets its own transpose.",
        "Nothing: the value is stored first. An input that meets its transpose is read twice.",
    ),
    "vendor": Advice(
        "No call of a vendor's library by this name computes what the group computes.",
        "Nothing, unless the plan was edited by hand: then tune again.",
    ),
    "walk": Advice(
        "No axis of a region's large values can be walked in chunks.",
        "Nothing: the values are stored, or computed again where that is possible.",
    ),
    "window": Advice(
        "A slice that cannot be moved to where the data is loaded: of a reduction, or through a "
        "reshape.",
        "Slice the inputs rather than the results. Else the slice runs as ATen.",
    ),
}
"""The rule of every `Refusal`."""

WARNINGS: Mapping[str, Advice] = {
    "bundle": Advice(
        "The machine code in a bundle was made by other versions, or cannot be put in its place.",
        "Nothing is wrong; the first call takes longer. `planner bundle` on this machine, or with "
        "these versions, makes one that fits.",
    ),
    "no-bundle": Advice(
        "A bundle cannot be read, or is not signed by a key that is trusted. It counts as empty.",
        "`planner import FILE --dry-run` says whether it can be used; `planner trust` adds its "
        "signer's key, if you know whose it is.",
    ),
    "no-plan": Advice(
        "A graph of the model has no plan that may run here, and runs as the baseline.",
        "`planner tune` makes a plan; `planner why-miss` says what the stored ones differ in.",
    ),
    "store": Advice(
        "The store cannot be read, or there is no profile of the device. No graph has a plan.",
        "`planner doctor` says what is wrong with the store.",
    ),
    "unplannable": Advice(
        "A graph cannot be captured as the planner needs it, and runs as the baseline.",
        "The text names the operation: leave it out of the compiled part, or report it.",
    ),
    "inductor": Advice(
        "The plan or the baseline is torch.compile's, which failed; the graph runs by ATen.",
        'Run it alone with backend="inductor" to see the whole error.',
    ),
    "substitute": Advice(
        "A kernel of the plan does not compile here, or the device cannot hold it. That group runs "
        "by its next best config, or by ATen; the others run as planned.",
        "`planner tune` makes a plan for this device and these versions.",
    ),
    "no-cudagraph": Advice(
        "The plan asks for a CUDA graph, which could not be captured; the kernels run one by one.",
        "Often something outside uses the stream or the memory: the text is CUDA's.",
    ),
    "kernel-cache": Advice(
        "Compiled kernels cannot be kept where Triton keeps them; a temporary folder is used.",
        "Free some space, or name another folder with TRITON_CACHE_DIR.",
    ),
    "saved": Advice(
        "What the forward pass saves for the backward pass could not be chosen.",
        "Nothing is wrong with the numbers; torch's own choice is used. Report the text.",
    ),
}
"""Every warning of the library, by name."""


def warn(name: str, text: str, stacklevel: int = 2) -> None:
    """Warn with this text and the cure of the warning `name`. Raises KeyError for a name that is
    not in `WARNINGS`."""
    cure = WARNINGS[name].cure
    warnings.warn(f"fusionplan: {text}. {cure}", FusionplanWarning, stacklevel=stacklevel + 1)
