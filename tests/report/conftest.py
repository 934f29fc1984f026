"""Makes `report_store` importable, and opens a headless browser where there is one."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from fusionplan.report.plots import library

sys.path.insert(0, str(Path(__file__).parent))

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
)


def _program(*names: str) -> str | None:
    return next((found for name in names if (found := shutil.which(name))), None)


def _missing(what: str, cure: str) -> NoReturn:
    """Without a browser the tests are skipped, but not in continuous integration."""
    reason = f"no {what}: {cure}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def plotly_installed() -> None:
    """For tests that need the library of the plots."""
    if library() is None:
        _missing("plotly", "pip install plotly")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Chromium, driven by selenium, which logs its console and its network."""
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        _missing("selenium", "pip install selenium")

    binary = _program("chromium", "chromium-browser", "google-chrome")
    driver = _program("chromedriver")
    if binary is None or driver is None:
        cure = "on Debian and Ubuntu, apt install chromium chromium-driver"
        _missing("chromium" if binary is None else "chromedriver", cure)
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options=options, service=Service(driver)) as opened:
        opened.set_page_load_timeout(60)
        yield opened
