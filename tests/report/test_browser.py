"""The page in a real browser: it opens, a click shows a group, nothing is logged or fetched."""

import json
import time
from dataclasses import replace

import pytest
from fusionplan.db import Store
from fusionplan.planner.costs.device import H200
from fusionplan.report.collect import Subject, collect
from fusionplan.report.page import LIMIT, page
from report_store import block, fill

pytestmark = pytest.mark.process

LAYERS = 40
"""Copies of the graph in a large page."""
HOSTILE = '"></pre><script>document.title = "taken"</script>'


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of a measured plan, and one of very many graphs."""
    folder = tmp_path_factory.mktemp("pages")
    graph = block(mm=HOSTILE, exp="<script>")
    plan = fill(folder / "plans.db", graph, name=HOSTILE)
    with Store.open(folder / "plans.db", create=False, read_only=True) as store:
        subject = Subject(HOSTILE, graph, plan, "by hand", sources={4: f"{HOSTILE}.py:1: relu"})
        report = collect(HOSTILE, [subject], H200, store)
        (folder / "one.html").write_text(page(report), encoding="utf-8")
        many = replace(report, graphs=report.graphs * LAYERS)
        (folder / "many.html").write_text(page(many), encoding="utf-8")
    return folder


@pytest.fixture
def opened(browser, pages):
    """A function that opens a page and gives the browser."""

    def go(name: str, width: int = 1440, height: int = 900, scheme: str = "light"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for log in ("browser", "performance"):
            browser.get_log(log)
        browser.get((pages / name).as_uri())
        return browser

    return go


def shown(browser) -> list[str]:
    return browser.execute_script(
        "return [...document.querySelectorAll('.detail')].filter(d => !d.hidden).map(d => d.id)"
    )


def requests(browser) -> set[str]:
    """The addresses that the page asked for."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return {
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    }


def test_a_click_shows_a_group(opened):
    browser = opened("one.html")
    assert shown(browser) == ["step-0-0"]  # the longest
    first, second, _ = browser.find_elements("css selector", "button[data-open]")
    second.click()
    assert shown(browser) == ["step-0-1"]
    assert second.get_attribute("aria-current") == "true"
    assert first.get_attribute("aria-current") == "false"
    detail = browser.find_element("id", "step-0-1")
    for text in ("amax sub exp sum div mul", "Search", "What lost", "On the roofline"):
        assert text in detail.text, text
    kernel = next(d for d in detail.find_elements("tag name", "summary") if "Kernel" in d.text)
    kernel.click()
    assert "@triton.jit" in detail.text
    touched = browser.execute_script(
        "return [...document.querySelectorAll('.out li.touched')].map(e => e.dataset.tensor)"
    )
    assert touched == ["0", "1", "2"]  # reads mm, writes div and mul
    first.click()
    assert shown(browser) == ["step-0-0"]
    assert not detail.is_displayed()


def test_keys_and_the_roofline_choose_a_group(opened):
    browser = opened("one.html")
    browser.execute_script("document.querySelector('button[data-open]').focus()")
    browser.switch_to.active_element.send_keys("\ue015")  # arrow down
    assert shown(browser) == ["step-0-1"]
    browser.find_element("css selector", "circle[data-open='step-0-0']").click()
    assert shown(browser) == ["step-0-0"]


def test_the_strip_and_the_longest_steps_choose_a_group(opened):
    browser = opened("one.html")
    first, second = browser.find_elements("css selector", ".strip rect")
    widths = [float(each.get_attribute("width")) for each in (first, second)]
    assert sum(widths) == pytest.approx(1000, abs=0.1)
    second.click()
    assert shown(browser) == ["step-0-1"]
    assert second.get_attribute("aria-current") == "true"
    browser.find_element("css selector", "a[data-open='step-0-0']").click()
    assert shown(browser) == ["step-0-0"]


def test_an_address_names_a_group(opened, browser, pages):
    opened("one.html")
    browser.get("about:blank")
    browser.get((pages / "one.html").as_uri() + "#step-0-2")
    assert shown(browser) == ["step-0-2"]


def test_names_are_not_obeyed_and_nothing_is_fetched(opened, pages):
    browser = opened("one.html")
    for button in browser.find_elements("css selector", "button[data-open]"):
        button.click()
    assert browser.title == f"{HOSTILE}: fusion report"
    assert browser.get_log("browser") == []
    assert all(url.startswith(("file:", "data:")) for url in requests(browser))
    assert len(browser.find_elements("tag name", "script")) == 1
    assert "<script>" in browser.find_element("css selector", ".gone").text + browser.page_source


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1024, 1440, 2200])
def test_it_fits(opened, width, scheme):
    browser = opened("one.html", width=width, scheme=scheme)
    for button in browser.find_elements("css selector", "button[data-open]"):
        browser.execute_script("arguments[0].click()", button)
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width
    paper, ink = browser.execute_script(
        "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
    )
    assert (_light(paper) > _light(ink)) == (scheme == "light")


def _light(colour: str) -> int:
    return sum(int(part) for part in colour.strip("rgb()").split(","))


def test_it_prints(opened):
    browser = opened("one.html", scheme="dark")
    pdf = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
    assert len(pdf["data"]) > 10_000
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert _light(paper) == 3 * 255


def test_a_large_page_opens_at_once(opened, pages):
    assert (pages / "many.html").stat().st_size <= LIMIT
    seconds = []
    for _ in range(3):  # other tests may have the processor
        start = time.monotonic()
        browser = opened("many.html")
        seconds.append(time.monotonic() - start)
    assert min(seconds) < 2.0
    assert len(browser.find_elements("css selector", ".graph")) == LAYERS
    browser.find_elements("css selector", "button[data-open]")[-1].click()
    assert f"step-{LAYERS - 1}-2" in shown(browser)
    assert browser.get_log("browser") == []
