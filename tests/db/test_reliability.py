"""A small sample of scripts/reliability.py; docs/reliability.md has the counts of large ones."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parents[2] / "scripts/reliability.py"


TIMES = [("truncate", 20), ("flip", 20), ("full", 1), ("kill", 2)]
TIMES += [(name, 2) for name in ("readonly", "owner", "versions")]


@pytest.fixture(scope="module")
def reliability():
    spec = importlib.util.spec_from_file_location("reliability", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name, times", TIMES)
def test_all_is_well(reliability, name, times):
    assert reliability.run(name, times, seed=11) == times
