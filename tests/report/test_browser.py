"""The page in a real browser: it opens, a click shows a group, nothing is logged or fetched."""

import json
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
def pages(tmp_path_factory, plotly_installed):
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


def _worked_s(browser) -> float:
    """Seconds that the page's main thread has worked."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(each["value"] for each in metrics if each["name"] == "TaskDuration")


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
    click_mark(browser, "roofline-0", "path.point", 0)
    assert shown(browser) == ["step-0-0"]
    assert stressed(browser, "roofline-0") == [0]


def test_the_strip_and_the_longest_steps_choose_a_group(opened):
    browser = opened("one.html")
    click_mark(browser, "strip-0", ".point path", 1)
    assert shown(browser) == ["step-0-1"]
    assert stressed(browser, "strip-0") == [1]
    browser.find_element("css selector", "a[data-open='step-0-0']").click()
    assert shown(browser) == ["step-0-0"]


def test_the_search_is_drawn_with_its_trials(opened):
    browser = opened("one.html")
    browser.find_elements("css selector", "button[data-open]")[1].click()
    detail = browser.find_element("id", "step-0-1")
    plot = detail.find_element("css selector", ".plot[aria-label='Trials over time']")
    browser.execute_script("arguments[0].scrollIntoView()", plot)
    drawn(browser, plot)
    trials = browser.execute_script("return arguments[0].data.map(t => t.x.length)", plot)
    assert trials[0] == 21
    assert len(plot.find_elements("css selector", "path.point")) == 21 + 1 + 4  # chosen, failed
    again = detail.find_element("css selector", ".plot[data-again]")
    browser.execute_script("arguments[0].scrollIntoView()", again)
    drawn(browser, again)
    assert len(again.find_elements("css selector", "path.point")) == 1


def test_plots_have_the_colours_of_the_scheme(opened):
    found = {}
    for scheme in ("light", "dark"):
        browser = opened("one.html", scheme=scheme)
        drawn(browser, browser.find_element("id", "roofline-0"))
        found[scheme] = ink(browser)
    features = [{"name": "prefers-color-scheme", "value": "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    wait(browser, lambda: ink(browser) == found["light"])
    assert _light(found["light"]) < _light(found["dark"])


def ink(browser) -> str:
    """The colour of the roof."""
    return browser.execute_script(
        "return getComputedStyle(document.querySelector('#roofline-0 path.js-line')).stroke"
    )


def drawn(browser, plot) -> None:
    """Waits until plotly has drawn it."""
    wait(browser, lambda: "js-plotly-plot" in plot.get_attribute("class"))


def wait(browser, true) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(lambda _: true())


def click_mark(browser, plot: str, mark: str, number: int) -> None:
    """Clicks on a mark of a plot, as a mouse does."""
    from selenium.webdriver import ActionChains

    element = browser.find_element("id", plot)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    drawn(browser, element)
    found = element.find_elements("css selector", mark)[number]
    ActionChains(browser).move_to_element(found).pause(0.2).click().perform()


def stressed(browser, plot: str) -> list[int]:
    return browser.execute_script(
        "return document.getElementById(arguments[0]).data.at(-1).selectedpoints", plot
    )


def test_an_address_names_a_group(opened, browser, pages):
    opened("one.html")
    browser.get("about:blank")
    browser.get((pages / "one.html").as_uri() + "#step-0-2")
    wait(browser, lambda: shown(browser))
    assert shown(browser) == ["step-0-2"]


def test_names_are_not_obeyed_and_nothing_is_fetched(opened, pages):
    browser = opened("one.html")
    for button in browser.find_elements("css selector", "button[data-open]"):
        button.click()
    for plot in browser.find_elements("css selector", ".plot[id]"):
        browser.execute_script("arguments[0].scrollIntoView()", plot)
        drawn(browser, plot)
    assert browser.title == f"{HOSTILE}: fusion report"
    assert browser.get_log("browser") == []
    assert all(url.startswith(("file:", "data:")) for url in requests(browser))
    assert len(browser.find_elements("tag name", "script")) == 2  # ours, and plotly
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
    plot = browser.find_element("id", "roofline-0")
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    drawn(browser, plot)
    assert _light(ink(browser)) < 255  # dark on white
    width = browser.execute_script("return document.querySelector('#roofline-0 svg').clientWidth")
    assert width <= 640


def test_a_large_page_opens_at_once(opened, pages):
    assert (pages / "many.html").stat().st_size <= LIMIT
    browser = opened("one.html")
    # Of the thread that lays the page out: others may have the processor.
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    before = _worked_s(browser)
    opened("many.html")
    worked = _worked_s(browser)
    # Another process may show the new page; its thread has worked for that page alone.
    assert 0 < (worked - before if worked > before else worked) < 1.0
    assert len(browser.find_elements("css selector", ".graph")) == LAYERS
    browser.find_elements("css selector", "button[data-open]")[-1].click()
    assert f"step-{LAYERS - 1}-2" in shown(browser)
    assert browser.get_log("browser") == []
