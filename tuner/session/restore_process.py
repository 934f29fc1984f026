"""Puts the model and the process back as they were before a tune.

What a forward pass writes to a model (running statistics, counters), the state of random number
generators and the settings of libraries are put back; code objects lose the versions that
torch.compile made of them for the contestants, which would count towards its limit for each.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import Any

import numpy
import optuna
import torch
from torch._dynamo.convert_frame import register_bytecode_hook

from ...planner.errors import line_of

log = logging.getLogger(__name__)

RECOMPILATIONS = 1 << 16
"""Versions of one code object while a model is tuned: each contestant has one of its own. Beyond
its limit torch.compile silently runs eager."""


@contextmanager
def process_restored(model: Callable[..., Any]) -> Iterator[None]:
    """Puts back, when a tune of the model ends, all that it may have changed."""
    with ExitStack() as stack:
        stack.enter_context(settings_restored())
        stack.enter_context(_statistics(model))
        stack.enter_context(_compiled_code())
        yield


@contextmanager
def settings_restored() -> Iterator[None]:
    """Puts back what belongs to the process, not the model: for the tune of a graph in the middle
    of a run of its model."""
    with _random_numbers(), _optuna_verbosity():
        yield


@contextmanager
def _random_numbers() -> Iterator[None]:
    states = random.getstate(), numpy.random.get_state()
    cuda: Any = torch.cuda
    devices = range(cuda.device_count()) if cuda.is_initialized() else []
    on_gpus = [(device, cuda.get_rng_state(device)) for device in devices]
    on_cpu = torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.set_rng_state(on_cpu)
        with _where_the_device_works():
            for device, state in on_gpus:
                cuda.set_rng_state(state, device)


@contextmanager
def _where_the_device_works() -> Iterator[None]:
    """A device that was lost during the tune has nothing left to put back: what was found before
    is kept, and what became of the device was told."""
    try:
        yield
    except RuntimeError as error:
        log.debug("not put back: %s", line_of(error))


@contextmanager
def _statistics(model: Callable[..., Any]) -> Iterator[None]:
    """Buffers are what a forward pass writes to. Parameters are too large to copy for the rare
    model that writes to one."""
    buffers = list(model.buffers()) if isinstance(model, torch.nn.Module) else []
    kept = [(buffer, buffer.detach().clone()) for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad(), _where_the_device_works():
            for buffer, value in kept:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


@contextmanager
def _optuna_verbosity() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def _compiled_code() -> Iterator[None]:
    seen: dict[CodeType, None] = {}

    def see(code: CodeType, new_code: CodeType) -> None:
        seen[code] = None

    handle = register_bytecode_hook(see)
    limits = {
        "recompile_limit": RECOMPILATIONS,
        "accumulated_recompile_limit": RECOMPILATIONS,
    }
    try:
        with torch._dynamo.config.patch(limits):
            yield
    finally:
        handle.remove()
        for code in seen:
            torch._C._dynamo.eval_frame.reset_code(code)
