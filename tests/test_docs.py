"""The documentation: the site builds strictly, links lead somewhere, pages tell the code."""

import ast
import functools
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import fusionplan
import pytest
from fusionplan.cli import pages
from fusionplan.cli.messages import messages
from fusionplan.planner.cures import RULES, WARNINGS, FusionplanWarning, warn

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("planner", "tuner", "db", "cli", "bench", "bundles", "report", "markup")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)]*)?\)")


def sources():
    for folder in PACKAGES:
        yield from sorted((ROOT / folder).rglob("*.py"))
    yield from sorted(ROOT.glob("*.py"))


def calls(*names: str):
    """Every call of a function of one of these names in the source, with its place."""
    for path, node in nodes():
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in names:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


@functools.cache
def nodes():
    """The calls and the classes of all sources, each with its file."""
    return [
        (path, node)
        for path in sources()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call | ast.ClassDef)
    ]


def test_no_page_has_the_name_of_one_of_sphinxs_own():
    """Sphinx would write its own page over ours."""
    own = {"search", "genindex", "modindex", "py-modindex"}
    pages_of_ours = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert len(pages_of_ours) > 20
    assert not own & pages_of_ours


# Refusals and warnings


def test_every_rule_of_a_refusal_has_a_cure():
    used = {}
    for place, call in calls("Refusal", "Refused"):
        if call.args and isinstance(call.args[0], ast.Constant):
            used.setdefault(call.args[0].value, place)
    assert len(used) > 20
    assert {rule: place for rule, place in used.items() if rule not in RULES} == {}
    assert RULES.keys() - used.keys() == set(), "no refusal is by these rules"


def test_every_warning_has_a_cure():
    def is_bare(call: ast.Call) -> bool:
        return ast.unparse(call.func) == "warnings.warn"

    bare = [place for place, call in calls("warn") if is_bare(call)]
    assert [place for place in bare if not place.startswith("planner/cures.py")] == []
    first = [call.args[0] for _, call in calls("warn", "_warn") if not is_bare(call)]
    assert {name.value for name in first if isinstance(name, ast.Constant)} == WARNINGS.keys()


@pytest.mark.parametrize("name", WARNINGS)
def test_a_warning_ends_with_its_cure(name):
    with pytest.warns(FusionplanWarning) as found:
        warn(name, "something happened")
    assert str(found[0].message) == f"fusionplan: something happened. {WARNINGS[name].cure}"


@pytest.mark.parametrize("table", [RULES, WARNINGS], ids=["rules", "warnings"])
def test_causes_and_cures_are_sentences(table):
    for name, told in table.items():
        assert told.why.endswith("."), name
        assert told.cure.endswith("."), name


# Pages made from the code


@pytest.mark.process  # What describes the machine asks it when it is imported first.
def test_public_names_are_all_in_the_reference():
    page = pages.api()
    for name in fusionplan.__all__:
        if not name.startswith("__"):
            value = getattr(fusionplan, name)
            assert f"## fusionplan.{name}\n" in page
            assert (value.__doc__ or "").split()[:3], f"{name} has no docstring"


def test_messages_list_every_rule_warning_and_exception():
    """Renew the page: python -m fusionplan.cli.messages > docs/messages.md"""
    page = messages()
    assert (ROOT / "docs" / "messages.md").read_text() == page
    for name in (*RULES, *WARNINGS):
        assert f"| `{name}` |" in page
    assert "| `fusionplan.PlanError` | 5 (plan) |" in page


# Docstrings


ASKING = re.compile(r"(What|How|Which|Whether|Why|Who|Where)\b")


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_a_module_is_named_by_its_first_line():
    """A noun or a verb says what a module is; "What", "How" and "Which" are questions."""
    first = {path: ast.get_docstring(parsed(path)) or "" for path in sources()}
    asked = [path for path, text in first.items() if ASKING.match(text)]
    assert len(first) > 300
    assert [str(path.relative_to(ROOT)) for path in asked] == []


def test_a_class_is_named_by_its_first_line():
    classes = [node for _, node in nodes() if isinstance(node, ast.ClassDef)]
    public = [c for c in classes if not c.name.startswith("_")]
    assert len(public) > 400
    assert [c.name for c in public if ASKING.match(ast.get_docstring(c) or "")] == []


def test_a_class_has_a_name_of_its_own():
    """One name, one thing: the name tells the file."""
    count = Counter(node.name for _, node in nodes() if isinstance(node, ast.ClassDef))
    assert [name for name, times in count.items() if times > 1] == []


# The site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The documentation with its pages from the code, as scripts/docs has it."""
    folder = tmp_path_factory.mktemp("docs") / "docs"
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("generated"))
    for name in ("examples", "README.md", "planner", "tuner", "scripts", "CONTRIBUTING.md"):
        if (ROOT / name).exists():
            (folder.parent / name).symlink_to(ROOT / name)
    pages.main(folder / "generated")
    return folder


def built(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html"]
    return subprocess.run(
        [*command, str(folder), str(folder.parent / "site")],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.process
def test_the_site_builds_and_fetches_nothing(site):
    pytest.importorskip("sphinx")
    result = built(site)
    assert result.returncode == 0, result.stderr
    made = sorted((site.parent / "site").rglob("*.html"))
    assert len(made) > 15
    loaded = re.compile(r"""<(?:script|link|img)[^>]*(?:src|href)=["'](https?:)?//""")
    assert [p.name for p in made if loaded.search(p.read_text())] == []
    styles = (p.read_text() for p in (site.parent / "site").rglob("*.css"))
    assert not any(re.search(r"(@import|url\()\s*['\"]?(https?:)?//", text) for text in styles)


@pytest.mark.process
def test_a_broken_link_fails_the_build(tmp_path):
    pytest.importorskip("sphinx")
    folder = tmp_path / "docs"
    (folder / "static").mkdir(parents=True)
    for name in ("conf.py", "static/site.css"):
        shutil.copy(ROOT / "docs" / name, folder / name)
    (folder / "index.md").write_text("# Title\n\n[nowhere](no-such-page.md)\n")
    result = built(folder)
    assert result.returncode != 0
    assert "no-such-page" in result.stderr


TOPS = "planner|tuner|db|cli|bench|bundles|report|markup|tests|scripts|examples"
PATH = re.compile(rf"`((?:{TOPS})/[^`\s*]*)`")


def test_paths_that_pages_name_are_there():
    pages_of_ours = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {(page.name, m[1]) for page in pages_of_ours for m in PATH.finditer(page.read_text())}
    assert len(named) > 50
    assert sorted(each for each in named if not (ROOT / each[1]).exists()) == []


def test_every_benchmark_has_a_line():
    text = (ROOT / "docs" / "howto-develop.md").read_text()
    commands = {
        path.stem
        for path in (ROOT / "bench").glob("[!_]*.py")
        if re.match(r'""".* -m fusionplan\.bench\.', path.read_text())
    }
    by_script = {"conformance", "kernel_texts", "planning", "table_age"}
    assert len(commands) > 12
    assert by_script < commands
    assert sorted(n for n in commands - by_script if f"fusionplan.bench.{n}`" not in text) == []


def test_every_rewrite_has_a_line():
    text = (ROOT / "docs" / "internals.md").read_text()
    files = {path.name for path in (ROOT / "planner/capture/rewrites").glob("[!_]*.py")}
    assert len(files) > 15
    assert sorted(name for name in files if f"`{name}`" not in text) == []


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_links_outside_of_the_site_lead_somewhere(page):
    links = [m[1] for m in LINK.finditer((ROOT / page).read_text())]
    gone = [to for to in links if "://" not in to and not (ROOT / to).exists()]
    assert gone == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
