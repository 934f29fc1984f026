"""Makes the modules beside the tests importable, and adds the switch that accepts goldens."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(folder) for folder in sorted(HERE.iterdir()) if folder.is_dir())]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept-goldens", action="store_true", help="rewrite the golden files")
