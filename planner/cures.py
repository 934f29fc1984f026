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
        "No value of the group has all axes of the grid, so that programs would compute the same "
        "things several times.",
        "Nothing to do: the parts become separate kernels, which costs one more launch.",
    ),
    "bodies": Advice(
        "A region needs one plan for each of its graphs, and some are missing.",
        "Nothing to do, unless the plan was edited by hand: then tune again.",
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
        "The config has no block for an axis, or a block for an axis that the nest does not have.",
        "Nothing to do, unless the plan was edited by hand: then tune again.",
    ),
    "constant": Advice(
        "A constant of this kind cannot be written into a kernel.",
        "Pass it as a tensor. Else the operation runs as ATen.",
    ),
    "convex": Advice(
        "A path leaves the group and comes back: the kernel would wait for itself.",
        "Often an operation that runs as ATen is on that path; `planner explain` names it. Write "
        "it in operations that a kernel can hold.",
    ),
    "descriptor": Advice("No access of the kernel can be made by a descriptor.", _NOTHING),
    "dtype": Advice(
        "A kernel of ours has no such type (complex numbers, quantised types).",
        "Compute in a type that has kernels. Else the operation runs as ATen.",
    ),
    "empty": Advice(
        "A tensor has no elements: there is nothing to compute, or no maximum or minimum.",
        "Leave the operation out for empty tensors. Eager decides what it gives.",
    ),
    "factor": Advice(
        "A reshape cuts across an axis, so one loop nest cannot serve both sides of it.",
        "Reshape so that whole axes are split or merged, or reshape at an end of the chain.",
    ),
    "flat": Advice(
        "The axes of the group cannot be merged into one (flat tiling), or there is only one.",
        _NOTHING,
    ),
    "held": Advice(
        "The reduced axes are too long for the registers of one block.",
        "Nothing to do: the reduction becomes a loop, or it is split over several programs.",
    ),
    "indexed": Advice(
        "The group reads by index from a value that it computes itself, or from a number, or the "
        "index is a mask.",
        "Nothing to do: another kernel stores that value first.",
    ),
    "layout": Advice(
        "This group cannot be reduced, or its axes cannot be tiled, as the layout says.", _NOTHING
    ),
    "loop": Advice(
        "There is no axis to loop over, or one loop would need the result of another one.",
        "Nothing to do: the group is reduced in another way.",
    ),
    "online": Advice(
        "Two reductions of a row cannot be made in one sweep: no rule says how to correct the "
        "running result of one when that of the other changes.",
        "Write the formula in one of the usual forms (softmax, mean and variance, log-sum-exp); "
        "`planner explain` names the step that failed. Else the row is read once more.",
    ),
    "fold": Advice(
        "The library has no call for this convolution together with what follows it.",
        "Nothing to do: what follows becomes a separate kernel.",
    ),
    "opaque": Advice(
        "The table of operations has no row for this operation, so no kernel of ours holds it.",
        "Write it in operations that are known, or leave it: it runs as ATen.",
    ),
    "options": Advice(
        "The plan of a region names no chunk size, or no call, that can be read.",
        "Nothing to do, unless the plan was edited by hand: then tune again.",
    ),
    "output": Advice(
        "The group has a result that is no tensor, or it has no result.",
        "Nothing to do: the operation runs as ATen.",
    ),
    "recompute": Advice(
        "Neighbouring blocks would each compute the same long reduction or matrix product again.",
        "Nothing to do: a separate kernel computes and stores the shared value once.",
    ),
    "scan": Advice(
        "A kernel can hold a scan only if its axis is held whole, or is walked in one loop. That "
        "is not so for this one.",
        "Nothing to do: the scan becomes a separate kernel, or runs as ATen.",
    ),
    "shared": Advice("The tiles need more shared memory than a multiprocessor has.", _NOTHING),
    "size": Advice(
        "The group has more than 96 operations, or its accesses need too many values.",
        "Nothing to do: it is split where the fewest bytes are stored between the parts.",
    ),
    "slow": Advice(
        "The cost model expects this config to take many times the time of the best one.", _NOTHING
    ),
    "spills": Advice(
        "The cost model expects far more values than a thread has registers.", _NOTHING
    ),
    "split": Advice(
        "No reduction is long enough to be split over the grid, or no axis has so many parts.",
        _NOTHING,
    ),
    "subtiles": Advice("No matmul has columns that can be computed in parts.", _NOTHING),
    "tile": Advice("A block would hold more elements than fit into its registers.", _NOTHING),
    "transposed": Advice(
        "A value that the group computes is combined with its own transpose.",
        "Nothing to do: another kernel stores the value first. An input with its transpose is no "
        "problem: it is read twice.",
    ),
    "vendor": Advice(
        "The library call that the plan names does not compute what the group computes.",
        "Nothing to do, unless the plan was edited by hand: then tune again.",
    ),
    "walk": Advice(
        "The large values of the region cannot be computed in chunks along any axis.",
        "Nothing to do: the values are stored, or computed again where that is possible.",
    ),
    "window": Advice(
        "A slice cannot be made where the data is loaded: it is of the result of a reduction, or "
        "there is a reshape in between.",
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
        "`planner tune` makes a plan. `planner why-miss` says how the stored plans differ.",
    ),
    "store": Advice(
        "The store cannot be read, or there is no profile of the device. No graph has a plan.",
        "`planner doctor` says what is wrong with the store.",
    ),
    "unplannable": Advice(
        "A graph cannot be captured as the planner needs it, and runs as the baseline.",
        "The text names the operation: keep it out of the compiled function, or report it.",
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
    "not-as-traced": Advice(
        "An operation that runs as ATen gave a tensor of another type or shape than was traced. A "
        "kernel of ours would misread it: what reads it runs as ATen, the rest as planned.",
        "If the operation is your own, mend its meta function (`register_fake`). If it is torch's, "
        "please report the text.",
    ),
    "no-cudagraph": Advice(
        "The plan asks for a CUDA graph, which could not be captured; the kernels run one by one.",
        "Often other code uses the same stream or memory. The text is CUDA's own message.",
    ),
    "kernel-cache": Advice(
        "Compiled kernels cannot be kept where Triton keeps them; a temporary folder is used.",
        "Free some space, or name another folder with TRITON_CACHE_DIR.",
    ),
    "saved": Advice(
        "What the forward pass saves for the backward pass could not be chosen.",
        "The numbers are right: torch's own choice is used. Please report the text.",
    ),
}
"""Every warning of the library, by name."""


def warn(name: str, text: str, stacklevel: int = 2) -> None:
    """Warn with this text and the cure of the warning `name`. Raises KeyError for a name that is
    not in `WARNINGS`."""
    cure = WARNINGS[name].cure
    warnings.warn(f"fusionplan: {text}. {cure}", FusionplanWarning, stacklevel=stacklevel + 1)
