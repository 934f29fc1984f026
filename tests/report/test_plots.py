"""The figures of the plots, as the data that plotly draws."""

import base64
import gzip
import hashlib
import html
import json
import sys
from dataclasses import replace

import pytest
from fusionplan.db import Store
from fusionplan.planner.costs.device import H200
from fusionplan.report import plots
from fusionplan.report.collect import Subject, collect
from fusionplan.report.page import page
from fusionplan.report.plots import MISSING, history_plot, library, roofline, search_plot, strip
from report_store import block, fill


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "plans.db"
    plan = fill(path, block())
    with Store.open(path, create=False, read_only=True) as store:
        return collect("block", [Subject("block", block(), plan, "by hand")], H200, store)


@pytest.fixture(scope="module")
def graph(report):
    return report.graphs[0]


def test_a_search_shows_every_trial(graph):
    search = next(s for s in graph.searches if any(t.seconds is None for t in s.trials))
    figure = search_plot(search).figure
    timed, best, chosen, failed = figure["data"]
    assert len(timed["x"]) + len(failed["x"]) == len(search.trials)
    assert timed["y"] == [t.seconds for t in search.trials if t.seconds]
    assert best["y"] == sorted(best["y"], reverse=True)
    assert best["y"][-1] == min(timed["y"])
    (number,) = chosen["x"]
    assert search.trials[number - 1].chosen
    assert failed["text"][0].endswith(search.trials[failed["x"][0] - 1].reason)
    assert search_plot(replace(search, trials=())) is None


def test_the_history_is_by_date(graph):
    searched, stored = history_plot(graph.runs).figure["data"]
    assert len(searched["x"]) + len(stored["x"]) == len(graph.runs)
    assert all(run.when in searched["x"] + stored["x"] for run in graph.runs)
    assert history_plot(graph.runs[:1]) is None


def test_the_roofline_has_every_step_that_calculates(report, graph):
    tensor, arithmetic, steps = roofline(graph, report.roof).figure["data"]
    assert tensor["y"][1:] == [report.roof.tensor] * 2
    assert tensor["x"][1] * report.roof.bandwidth == pytest.approx(report.roof.tensor)
    assert arithmetic["y"][-1] == report.roof.arithmetic
    assert steps["customdata"] == [0, 1]  # of the third nobody knows a time
    assert all(y <= min(x * report.roof.bandwidth, report.roof.tensor) for x, y in _points(steps))


def _points(trace):
    return zip(trace["x"], trace["y"], strict=True)


def test_the_strip_is_in_the_order_of_execution(graph):
    (bars,) = strip(graph.steps).figure["data"]
    assert bars["customdata"] == [0, 1]
    assert bars["x"] == [step.seconds for step in graph.steps if step.seconds]
    assert bars["base"] == [0.0, bars["x"][0]]
    assert strip(graph.steps[:1]) is None


def test_texts_have_no_tags_and_no_control_characters(graph):
    search = graph.searches[0]
    name = "<b>bold</b>\x1b[2J & " + "long " * 300
    figure = search_plot(
        replace(search, trials=(replace(search.trials[0], candidate=name),))
    ).figure
    (text,) = figure["data"][0]["text"]
    lines = text.split("<br>")
    assert 1 < len(lines) <= 6
    assert not any("<" in line or "\x1b" in line for line in lines)
    assert html.unescape(lines[0]).startswith("trial 1:")
    assert "&lt;b&gt;bold&lt;/b&gt;\\x1b[2J &amp; long" in text


def test_figures_are_json(report, graph):
    found = [roofline(graph, report.roof), strip(graph.steps), history_plot(graph.runs)]
    for plot in (*found, *map(search_plot, graph.searches)):
        json.dumps(plot.figure, allow_nan=False)


def test_the_library_is_packed_and_named_by_its_digest(plotly_installed):
    packed, digest = library()
    text = gzip.decompress(base64.b64decode(packed))
    assert base64.b64encode(hashlib.sha256(text).digest()).decode() == digest
    assert b"plotly" in text[:300]


def test_without_the_library_the_page_says_so(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)  # importing it fails
    library.cache_clear()
    try:
        text = page(report)
    finally:
        library.cache_clear()
    assert MISSING in text
    assert "data-figure" not in text
    assert 'id="plotly"' not in text
    assert "On the roofline" in text  # in words
    assert plots.on_roofline(report.graphs[0].steps[0], report.graphs[0]) in text
