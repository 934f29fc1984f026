"""A store with a device."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fusionplan.db import Store
from fusionplan.planner.costs.device import builtin
from fusionplan.tuner.records.ledger import device_record


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "plans.db") as opened:
        opened.put_device(device_record(builtin("h200")))
        yield opened
