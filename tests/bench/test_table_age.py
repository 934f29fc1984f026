"""Tables of figures say of which code generation they are, and that is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fusionplan.bench import table_age
from fusionplan.bench.table_age import Figures, bare, main, parsed, renewed
from fusionplan.planner.versions import CODEGEN

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TABLE = "| a | b |\n|---|---|\n| 1.5 ms | 2x |\n"
COMMENT = "<!-- figures: codegen=3; date=2026-11-21; device=NVIDIA H200 -->"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_what_a_document_says_of_its_tables_is_true(document: Path) -> None:
    """`scripts/figures` makes it so."""
    text = document.read_text()
    stale = [f.line for f in table_age.figures(text) if f.is_stale(int(CODEGEN))]
    assert renewed(text) == text, f"not told: tables on lines {stale} are older: scripts/figures"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_each_table_of_figures_says_how_old_it_is(document: Path) -> None:
    assert bare(document.read_text()) == []


def test_a_line_is_written_once_and_renewed() -> None:
    first = renewed(f"# A\n\n{COMMENT}\n\n{TABLE}", 14)
    assert f"{COMMENT}\n*Measured with code generation 3; today's is 14.*\n\n{TABLE}" in first
    assert renewed(first, 14) == first
    assert renewed(first, 15) == first.replace("14", "15")


def test_a_line_that_is_not_true_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{COMMENT}\n*Measured with code generation 3; today's is 3.*\n\n{TABLE}")
    assert main(["--check", str(page)]) == 1
    assert "page.md" in capsys.readouterr().out
    assert main([str(page)]) == 0
    assert re.search(rf"page.md:1: Measured .* 3; today's is {CODEGEN}", capsys.readouterr().out)
    assert main(["--check", str(page)]) == 0


def test_a_comment_says_enough(tmp_path: Path) -> None:
    made = Figures((2, 13), "2026-11-22", "NVIDIA H200", "13b1cbb", "scripts/bench --seconds 45")
    assert parsed(made.comment()) == made
    assert made.told(14) == "*Measured with code generations 2 and 13; today's is 14.*"
    assert made.is_stale(14)
    assert not Figures((14,), "", "").is_stale(14)
    for wrong in ("date=2026-11-21; device=x", "codegen=x; date=y; device=z", "codegen=3; day=1"):
        with pytest.raises(ValueError, match="codegen, date and device"):
            parsed(f"<!-- figures: {wrong} -->")
    page = tmp_path / "page.md"
    page.write_text("<!-- figures: codegen=3 -->\n")
    assert main([str(page)]) == 2


def test_a_table_without_a_comment_is_seen() -> None:
    assert bare(f"text\n\n{TABLE}") == [3]
    assert bare(f"{COMMENT}\n*Measured with ...*\n\n{TABLE}") == []
    assert bare(f"<!-- figures: not measured -->\n\n{TABLE}") == []
    assert bare("| code | meaning | more |\n|---|---|---|\n| 1 | an error | of ours |\n") == []
