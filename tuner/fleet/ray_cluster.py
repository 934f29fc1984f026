"""Workers as Ray tasks: one for each GPU of a cluster that is of the tune's kind.

Ray carries names and numbers to the tasks; graphs and results go through the store alone. A task
whose process died is started again by Ray, and its claims fall free when their lease ends.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...db.errors import StoreError
from ...db.store import Store
from ...planner.errors import DeviceError, FusionplanError, line_of
from .worker import FleetWorker, ProgressLines
from .worker_process import OpenSite, open_cuda

ANSWER_S = 5.0
"""Seconds that the cluster's address has to accept a connection."""
PROBE_S = 120.0
"""Seconds that the nodes have to import torch and say what GPU they have."""
END_S = 10.0
"""Seconds that the tasks have to end by themselves, once the tune's jobs are over."""
RETRIES = 3
"""How often Ray starts a task again whose process died."""


class ExtraMissing(FusionplanError):
    """A package is not installed that an option needs."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray cluster that we are connected to."""

    ray: Any
    address: str
    open_site: OpenSite

    @staticmethod
    @contextmanager
    def connected(address: str, open_site: OpenSite | None = None) -> Iterator[Cluster]:
        """Connects while the block runs. Raises ExtraMissing without Ray, DeviceError for an
        address at which no cluster answers, or one without a GPU."""
        try:
            import ray
        except ImportError as error:
            raise ExtraMissing(
                "--ray needs the package ray: pip install 'fusionplan[fleet]'"
            ) from error
        connects = not ray.is_initialized()  # else the caller has, and goes on with it
        if connects:
            _require_answer(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise _no_answer(address, line_of(error, -1)) from error
        try:
            yield Cluster(ray, address, open_site or open_cuda)
        finally:
            if connects:
                ray.shutdown()

    @contextmanager
    def workers(self, store: Store, tune: str, tell: Callable[[str], None]) -> Iterator[int]:
        """A task on each GPU that fits, while the block runs; gives how many there are. Raises
        DeviceError where no GPU fits, or where the nodes do not see the store."""
        fitting = self._fitting(store, tune, tell)
        share = self.ray.remote(num_gpus=1, num_cpus=0, max_retries=RETRIES)(share_jobs)
        tasks = [
            share.options(scheduling_strategy=self._on(node)).remote(
                self.open_site, compilers, store.url, tune
            )
            for node, compilers, gpus in fitting
            for _ in range(gpus)
        ]
        try:
            yield len(tasks)
        finally:
            self._end(tasks, tell)

    def _fitting(
        self, store: Store, tune: str, tell: Callable[[str], None]
    ) -> list[tuple[str, int, int]]:
        """The nodes whose GPUs fit: id, compilers for each GPU, and number of GPUs."""
        nodes = [n for n in self.ray.nodes() if n["Alive"] and n["Resources"].get("GPU", 0) >= 1]
        if not nodes:
            raise DeviceError(f"--ray {self.address}: no node of the cluster has a GPU")
        probe = self.ray.remote(num_gpus=0.01, num_cpus=0, max_retries=1)(probe_node)
        asked = {
            probe.options(scheduling_strategy=self._on(node["NodeID"])).remote(
                self.open_site, store.url, tune
            ): node
            for node in nodes
        }
        done, late = self.ray.wait(list(asked), num_returns=len(asked), timeout=PROBE_S)
        refused = {asked[each]["NodeManagerHostname"]: "did not answer" for each in late}
        fitting = []
        for each in done:
            node, reason = asked[each], self._answer(each)
            if reason is not None:
                refused[node["NodeManagerHostname"]] = reason
                continue
            gpus = int(node["Resources"]["GPU"])
            compilers = int(node["Resources"].get("CPU", gpus)) // gpus - 2
            fitting.append((node["NodeID"], max(1, min(12, compilers)), gpus))
        said = "; ".join(f"{host}: {reason}" for host, reason in refused.items())
        if not fitting:
            raise DeviceError(f"--ray {self.address}: no GPU of the cluster can help: {said}")
        if refused:
            tell(f"of the cluster these cannot help: {said}")
        return fitting

    def _answer(self, probe: Any) -> str | None:
        try:
            said: str | None = self.ray.get(probe)
        except self.ray.exceptions.RayError as error:
            return line_of(error, -1)
        return said

    def _on(self, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id=node, soft=False)

    def _end(self, tasks: list[Any], tell: Callable[[str], None]) -> None:
        """Tell what each came to; one that does not end by itself is killed."""
        done, late = self.ray.wait(tasks, num_returns=len(tasks), timeout=END_S)
        for each in late:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.cancel(each, force=True)
        failed = []
        for each in done:
            try:
                self.ray.get(each)
            except self.ray.exceptions.RayError as error:
                failed.append(line_of(error, -1))
        for reason in dict.fromkeys(failed):
            tell(f"{failed.count(reason)} of {len(tasks)} workers of the cluster failed: {reason}")


def probe_node(open_site: OpenSite, url: str, tune: str) -> str | None:
    """On a node: why it cannot help with the tune's jobs; None where it can."""
    try:
        site = open_site(1)
        with Store.open(url, create=False, read_only=True) as store:
            jobs = store.jobs.open(tune)
            worker = FleetWorker(store, site, ProgressLines(lambda text: None))
            reasons = [worker.mismatch(job.job.device_key, job.job.versions) for job in jobs]
    except StoreError as error:
        return f"it does not reach the tune's store: {error}"
    except FusionplanError as error:
        return str(error)
    if not reasons:
        return (
            "it sees another store than the tune: give --store a PostgreSQL URL, or a path that "
            "all hosts share"
        )
    return reasons[0]


def share_jobs(open_site: OpenSite, compilers: int, url: str, tune: str) -> int:
    """On a node: a worker until the tune's jobs are over; gives the number of its trials."""
    with Store.open(url, create=False) as store:
        return FleetWorker(store, open_site(compilers), ProgressLines(print)).run(tune=tune)


def _require_answer(address: str) -> None:
    """An address that nobody listens at is told at once: Ray would wait for it."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return  # "auto", or what Ray knows better
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except OSError as error:
        raise _no_answer(address, error.strerror or str(error)) from error


def _no_answer(address: str, why: str) -> DeviceError:
    return DeviceError(
        f"--ray {address}: no Ray cluster answers there ({why}); start one with "
        "`ray start --head`, or give the address that it printed"
    )
