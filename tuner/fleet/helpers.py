"""The helpers of a tune: other GPUs of its host, and a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from ...db.store import Store
from .local_gpus import LocalGpus, local_workers
from .ray_cluster import Cluster
from .site import compilers_of


@dataclass(frozen=True, slots=True)
class Helpers:
    """jobs: compilers on this host, of all processes together; None: what its cores allow."""

    gpus: LocalGpus | None = None
    cluster: Cluster | None = None
    jobs: int | None = None
    _local: ExitStack = field(default_factory=ExitStack)
    """The workers on GPUs of this host."""

    @property
    def compilers(self) -> int | None:
        """Of each process on this host, the tune's own too."""
        return compilers_of(self.jobs, 1 + (len(self.gpus.others) if self.gpus else 0))

    @contextmanager
    def begun(self, store: Store, tune: str, tell: Callable[[str], None]) -> Iterator[None]:
        """Workers on the GPUs of this host start, and wait for the tune's jobs. They end with
        `at_work`, or with this block."""
        with self._local:
            if self.gpus is not None:
                if self.gpus.note:
                    tell(self.gpus.note)
                others = self.gpus.others
                self._local.enter_context(local_workers(store, others, tune, self.compilers, tell))
            yield

    @contextmanager
    def at_work(self, store: Store, tune: str, tell: Callable[[str], None]) -> Iterator[None]:
        """All workers share the tune's open jobs while the block runs. Raises DeviceError where
        a cluster was asked for and cannot help."""
        with ExitStack() as stack:
            stack.callback(self._local.close)
            if self.cluster is not None:
                count = stack.enter_context(self.cluster.workers(store, tune, tell))
                tell(f"{count} GPUs of {self.cluster.address} share the search")
            yield
