"""Traces that an interrupted call leaves in the CUDA graphs of Inductor."""

from __future__ import annotations

import sys

import torch

_TREES = "torch._inductor.cudagraph_trees"


def forget_unfinished_warmup() -> None:
    """The graphs of all modes of a device have one manager, which remembers the warm-up that is
    under way. One that was interrupted is never over, so that the next call of any other graph
    fails: it is forgotten here, by the current device."""
    trees = sys.modules.get(_TREES)
    if trees is None or not torch.cuda.is_available():
        return
    manager = trees.get_manager(torch.cuda.current_device(), create_if_none_exists=False)
    if manager is not None:
        manager.current_node = None
