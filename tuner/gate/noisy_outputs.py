"""Evaluations of a graph with errors, which all its outputs share.

An evaluation computes the whole graph, whichever output is asked for. A training step has a
gradient for each parameter, and of so many outputs chance fails a few slices of some
(`more_samples`): each of them asks for the same evaluations. Here are only such outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...planner.graph.graph import Graph
from .perturbed import Noise, disturbed

_SHARE = 1 / 8
"""Of the memory that is free on the device, what the results that are kept may take."""

_ON_CPU = 1 << 30
"""Bytes of them where the device is the CPU."""


class NoisyOutputs:
    """The outputs of a graph with errors, for given inputs. keeps: the first evaluations, as many
    as fit: each output asks for them in the same order. A kernel's are not kept: there are few, and
    it is checked on many data sets."""

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[torch.Tensor],
        device: torch.device,
        keeps: bool = True,
    ) -> None:
        self.graph, self.inputs, self.device, self.keeps = graph, inputs, device, keeps
        self._outputs = tuple(dict.fromkeys(o for o in graph.outputs if o is not None))
        self._kept: dict[Noise, dict[int, torch.Tensor]] = {}
        self._room: int | None = None
        """Bytes that more results may take; None before any was asked for."""

    def output(self, output: int, noise: Noise) -> torch.Tensor:
        """The output that this node is, with such errors, in float64."""
        known = self._kept.get(noise)
        if known is None:
            wanted = self._outputs if self._fits() else (output,)
            known = dict(zip(wanted, self._evaluated(wanted, noise), strict=True))
            if wanted != (output,):
                self._kept[noise] = known
        return known[output]

    def _evaluated(self, outputs: tuple[int, ...], noise: Noise) -> list[torch.Tensor]:
        return disturbed(Graph(self.graph.nodes, outputs), self.inputs, self.device, noise)

    def _fits(self) -> bool:
        """Whether the results of one more evaluation may be kept; those are counted then."""
        if self._room is None:
            self._room = kept_bytes(self.device) if self.keeps else 0
        types = (self.graph.nodes[o].type for o in self._outputs)
        size = sum(8 * each.numel for each in types if each is not None)
        if size > self._room:
            return False
        self._room -= size
        return True


def kept_bytes(device: torch.device) -> int:
    """Bytes of evaluations that may be kept on a device."""
    if device.type != "cuda":
        return _ON_CPU
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(_SHARE * (torch.cuda.mem_get_info(device)[0] + unused))
