"""Makes the modules beside the tests importable, and adds the switch that accepts goldens."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept-goldens", action="store_true", help="rewrite the golden files")
