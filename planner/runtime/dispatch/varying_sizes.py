"""A graph with symbolic sizes: what runs at each set of sizes, found when they come."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import fx

from ...capture.capture import Captured, capture, specialise
from ...capture.symbolic import symbolic
from ...graph.graph import Numerics, key
from ...lowerings.base import Boxed
from ...lowerings.registry import ATEN
from ..cuda_graphs.graph_memory import SharedPools
from .compile_inputs import Given, device_of, sizes_of
from .frames import COUNTS, LeftAlone, divert_frame
from .leaving import DYNAMOS, RunsWhole
from .whole_way import WholeWay


class GraphCompiler(Protocol):
    """A dispatcher, as far as it is asked about one graph of fixed sizes."""

    @property
    def numerics(self) -> Numerics: ...
    def static(self, captured: Captured, given: Given) -> Boxed:
        """A function that runs the graph. Raises RunsWhole where it runs in one way."""
        ...

    def entire(self, gm: fx.GraphModule, inputs: Sequence[Any], way: WholeWay) -> Boxed:
        """The ATen graph itself run so."""
        ...

    def failed(self, device: torch.device, error: Exception) -> WholeWay:
        """Tells that a graph cannot be planned. Raises NoPlan where that is an error."""
        ...

    def forget(self, live: tuple[str, str]) -> None:
        """Removes the runner with this key, of a graph and its stage."""
        ...


@dataclass(frozen=True, slots=True)
class _Run:
    """The runner for some sizes. numbers: the outputs that are numbers, by position; None where
    `call` takes all the inputs. live: its key among those of the dispatcher. frame: the user's own
    code is best at these sizes, all of the frame."""

    call: Boxed
    numbers: tuple[tuple[int, Any], ...] | None
    live: tuple[str, str]
    frame: bool = False


class VaryingSizes:
    """A graph with symbolic sizes: for each set of sizes its own static graph, lowered by the
    plan of its bucket to kernels of which most are compiled already. CUDA graphs of all sizes share
    their memory.

    Sizes without a plan share one symbolic baseline, made when the graph is compiled with such
    sizes; only then may Inductor still add guards. Later it compiles for the sizes at hand.
    """

    LIMIT = 64
    """Sizes that are kept; the oldest goes first."""

    def __init__(self, compiler: GraphCompiler, gm: fx.GraphModule, given: Given) -> None:
        self._compiler, self._gm, self._stage = compiler, gm, given.stage
        self._symbolic = symbolic(gm, compiler.numerics)
        self._tensors = [i for i, x in enumerate(given.fakes) if isinstance(x, torch.Tensor)]
        self._shared: Boxed | None = None
        self._pools = SharedPools()
        self._runs: OrderedDict[Any, _Run] = OrderedDict()
        first = self._runs[self._sizes(given.fakes)] = self._specialised(given, compiling=True)
        # A backward graph has no frame; what autograd does for the user's own code runs then.
        self._frame = divert_frame() if given.stage != "backward" else None
        COUNTS.left += first.frame and self._frame is not None

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        sizes = self._sizes(args)
        found = self._runs.get(sizes)
        if found is None:
            given = Given(list(args), self._stage, [args[i] for i in self._tensors])
            found = self._runs[sizes] = self._specialised(given)
            del given
            if len(self._runs) > self.LIMIT:
                _, oldest = self._runs.popitem(last=False)
                self._compiler.forget(oldest.live)
        if found.frame and self._frame is not None:
            raise LeftAlone(self._frame)
        if found.numbers is None:
            return found.call(args)
        tensors = [args[i] for i in self._tensors]
        args.clear()
        results = found.call(tensors)
        if not found.numbers:
            return results
        results = list(results)
        for position, value in found.numbers:
            results.insert(position, value)
        return results

    def _sizes(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return sizes_of(inputs) if self._symbolic is None else self._symbolic.sizes(inputs)

    def _specialised(self, given: Given, compiling: bool = False) -> _Run:
        try:
            return self._planned(given, compiling)
        except DYNAMOS:
            raise
        except Exception as error:
            if compiling:
                raise  # the dispatcher still has a choice of what runs instead
            self._compiler.failed(device_of(given.fakes), error)
            run = self._shared or ATEN.entire(self._gm, given.fakes, "")
            return _Run(run, None, ("", self._stage))

    def _planned(self, given: Given, compiling: bool) -> _Run:
        inputs = given.fakes
        if self._symbolic is not None:
            captured, numbers = self._symbolic.at(self._symbolic.sizes(inputs))
        else:
            static = specialise(self._gm, inputs)
            numerics = self._compiler.numerics
            captured, numbers = capture(static.gm, numerics), static.numbers
        fakes = [captured.fx_nodes[i].meta["val"] for i in captured.graph.inputs]
        live = key(captured.graph), self._stage
        try:
            run = self._compiler.static(captured, replace(given, fakes=fakes, pools=self._pools))
            return _Run(run, numbers, live)
        except RunsWhole as whole:
            entire, way = self._compiler.entire, whole.way
            if way.lowering.one_by_one:  # It runs at any sizes.
                return _Run(entire(self._gm, inputs, way), None, live, whole.frame)
            if compiling and self._shared is None:
                self._shared = entire(self._gm, inputs, way)
            if self._shared is not None:
                return _Run(self._shared, None, live)
            return _Run(entire(captured.gm, fakes, way), numbers, live)
