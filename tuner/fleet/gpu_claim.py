"""The claim to a GPU: one process at a time measures on it, by a lease in the store."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ...db.claims import LEASE_S
from ...db.errors import StoreError
from ...db.store import Store
from ..records.heartbeat import Heartbeat


def gpu_id(device: torch.device) -> str:
    """The identity of a GPU among those of all hosts; "" for the CPU."""
    if device.type != "cuda":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


@contextmanager
def held(store: Store, gpu: str) -> Iterator[bool]:
    """Whether the GPU is this process's to measure on: two at a time would spoil each other's
    times. It is held, by a lease in the store, while the block runs."""
    if not gpu:
        yield True
        return
    holder = uuid.uuid4().hex
    if not store.claim_name(f"gpu {gpu}", holder, LEASE_S):
        yield False
        return
    with _renewed(store, holder):
        yield True


@contextmanager
def _renewed(store: Store, holder: str) -> Iterator[None]:
    def renew() -> None:
        with contextlib.suppress(StoreError):  # told by what is written next
            store.renew(holder, LEASE_S)

    alive = Heartbeat(renew, LEASE_S / 4)
    alive.start()
    try:
        yield
    finally:
        alive.stop()
        with contextlib.suppress(StoreError):
            store.release(holder)
