"""Jobs of conformance that end as their names say, in a module that a new process can import."""

from __future__ import annotations

import os

from fusionplan.bench.conformance_jobs import ConformanceRecord, OperationJob

LOST = "CUDA error: an illegal memory access was encountered"


def fake(job: OperationJob) -> ConformanceRecord:
    """A job that ends as its name says; the kernels of its record name its process."""
    if job.name == "dies":
        os._exit(7)
    if job.name == "raises":
        raise RuntimeError(LOST)
    broken = job.name == "breaks"
    return ConformanceRecord(
        job.name, job.dtype, {"ours": 1}, os.getpid(), (), 0.1, {}, broken=broken
    )
