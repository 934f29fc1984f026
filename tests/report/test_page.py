"""The page as text: names are data, nothing is fetched, and it keeps to its size."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from fusionplan.db import Store
from fusionplan.markup import text_of
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.errors import FusionplanError
from fusionplan.report import page as pages
from fusionplan.report.collect import Subject, collect
from fusionplan.report.data import Report
from fusionplan.report.page import LIMIT, page
from fusionplan.report.plots import Library
from report_store import NAME, block, fill

HOSTILE = (
    "<script>alert(1)</script>",
    '"></pre><img src=x onerror=alert(2)>',
    "{{ 7001 * 7003 }}{% raw %}",
    "'--></style></template>",
    "\x1b[2Jred\u202eturned",
)


@pytest.fixture(scope="module", autouse=True)
def library():
    """In place of plotly, which only a browser needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "library", lambda: Library("cGxvdGx5", "c2hhMjU2"))
        yield


class Tags(HTMLParser):
    """The tags of a page with their attributes; whether each that must be closed is."""

    VOID = frozenset({"meta", "link", "img", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def modelled() -> Report:
    graph = block()
    return collect(NAME, [Subject(NAME, graph, modelled_plan(graph, H200), "by hand")], H200, None)


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Report:
    path = tmp_path_factory.mktemp("store") / "plans.db"
    plan = fill(path, block())
    with Store.open(path, create=False, read_only=True) as store:
        return collect(NAME, [Subject(NAME, block(), plan, "by hand", key="k" * 32)], H200, store)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> str:
    """Hostile names of nodes, of the plan, of a trial's reason, of a file and of a note."""
    folder = tmp_path_factory.mktemp("store")
    given = dict(zip(("x", "add", "mm", "exp", "digamma"), HOSTILE, strict=True))
    graph = block(**given)
    plan = fill(folder / "plans.db", graph, name=HOSTILE[0], reason=HOSTILE[1])
    sources = {n: f"{text}.py:3: f({text})" for n, text in enumerate(HOSTILE, 3)}
    subject = Subject(
        HOSTILE[0], graph, plan, HOSTILE[1], key=HOSTILE[2], stage=HOSTILE[3], inputs=HOSTILE[4],
        sources=sources,
    )  # fmt: skip
    with Store.open(folder / "plans.db", create=False, read_only=True) as store:
        return page(collect(HOSTILE[1], [subject], H200, store, HOSTILE))


def test_names_are_data(hostile, stored):
    tags, plain = Tags(hostile), Tags(page(stored))
    assert tags.open == []
    assert {tag for tag, _ in tags.found} <= {tag for tag, _ in plain.found} | {"pre"}
    assert [tag for tag, _ in tags.found].count("script") == 1
    assert not any(name.startswith("on") for _, given in tags.found for name in given)
    assert "&lt;script&gt;alert(1)" in hostile
    assert str(7001 * 7003) not in hostile
    assert "{{ 7001 * 7003 }}" in hostile
    assert "\\x1b[2Jred\\u202eturned" in hostile
    assert "\x1b" not in hostile
    assert "\u202e" not in hostile


def test_nothing_is_fetched(stored, modelled, hostile):
    for text in (page(stored), page(modelled), hostile):
        tags = Tags(text)
        (policy,) = [a["content"] for _, a in tags.found if "http-equiv" in a]
        assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; ")
        assert "'sha256-c2hhMjU2'" in policy
        links = [a[n] for _, a in tags.found for n in ("href", "src") if n in a]
        assert all(link == "data:," or link.startswith("#") for link in links)
        assert not re.search(
            r"url\(|@import|https?:", text_of("shared.css") + text_of("report.css")
        )


def test_what_was_not_recorded_is_said(modelled, stored):
    text = page(modelled)
    for sentence in (
        "Nothing was measured: every time on this page is the cost model's estimate",
        "(by the cost model)",
        "No comparison with eager or torch.compile is recorded.",
        "1 step is counted in none of them: the model knows no time for it.",
        "No trials are recorded: nothing was searched on the device.",
        "make the report of the model's file to see them.",
        "What lost, by the model",
        "No earlier run is known: the report was made without a store.",
        "no estimate",
        "Bytes were not measured.",
    ):
        assert sentence in text.replace("&#39;", "'"), sentence
    told = page(stored)
    assert "Nothing was measured" not in told
    assert "What lost, measured" in told
    assert "the fastest baseline that was compared (measured)" in told


def test_an_empty_store_is_a_store(tmp_path):
    subject = Subject(NAME, block(), modelled_plan(block(), H200), "by the model")
    with Store.open(tmp_path / "plans.db") as store:
        text = page(collect(NAME, [subject], H200, store))
    assert "The store has no earlier run of this model." in text
    assert "without a store" not in text


def test_everything_of_a_group_is_there(stored):
    text = page(stored).replace("&#39;", "'")
    for part in (
        "@triton.jit",
        "loop r0 carrying",
        "registers a thread",
        "On the roofline",
        "Trials over time",
        "a NaN at 3",
        "too many registers",
        "never stored",
        "Why its neighbours are other kernels",
        "reduce-overhead was left out: it does not run",
        "temperature 41",
    ):
        assert part in text, part
    for graph in stored.graphs:
        for search in graph.searches:
            assert search.trials
            assert all(trial.candidate in text for trial in search.trials)


def test_a_graph_that_runs_as_eager(stored):
    plan = replace(modelled_plan(block(), H200), groups=(), predicted=None)
    found = collect(NAME, [Subject(NAME, block(), plan, "by hand")], H200, None)
    assert "The plan has no groups: the whole graph runs as eager does" in page(found)


def test_a_model_without_graphs():
    text = page(collect(NAME, [], H200, None, ("torch.compile took no graph",)))
    assert "there is nothing to fuse" in text
    assert Tags(text).open == []


def test_of_very_many_groups_less_is_shown(stored):
    whole = page(stored)
    assert len(whole.encode()) < LIMIT
    assert "Left out of this page" not in whole
    smaller = page(stored, limit=len(whole.encode()) - 1)
    assert "Left out of this page: the text of the kernels" in smaller
    assert "@triton.jit" not in smaller
    assert "Search" in smaller
    fewer = page(stored, limit=len(smaller.encode()) * 2 // 3)
    assert "the plots (planner report --json has their data)" in fewer
    assert "data-figure" not in fewer
    least = page(stored, limit=len(fewer.encode()) - 1)
    assert "all that a click on a group shows" in least
    assert "never stored" in least
    with pytest.raises(FusionplanError, match="report one plan by its key"):
        page(stored, limit=1000)
