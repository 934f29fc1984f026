"""The table of mutations fits the source, and the script that runs them tells what is caught; all
of them: `scripts/mutate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mutations import run
from mutations.run import Tests, broken, copied, misfits, passes, verdicts
from mutations.table import MUTATIONS, Mutation

ONE = Mutation("one", "code.py", "return 1", "return 2", ("test_code.py",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "code.py").write_text("def one():\n    return 1\n")
    (tmp_path / "test_code.py").write_text(
        "from fusionplan.code import one\n\ndef test_one():\n    assert one() == 1\n"
    )
    (tmp_path / "test_blind.py").write_text("def test_nothing():\n    pass\n")
    return tmp_path


@pytest.mark.process
def test_every_text_is_in_the_source_once() -> None:
    assert len(MUTATIONS) >= 60
    assert len({m.name for m in MUTATIONS}) == len(MUTATIONS)
    assert misfits(MUTATIONS) == []


def test_a_table_that_does_not_fit_is_told(tree: Path) -> None:
    for wrong, told in (
        (replace(ONE, old="return 3"), "0 times"),
        (replace(ONE, old="n"), "times"),
        (replace(ONE, file="gone.py"), "0 times"),
        (replace(ONE, new=ONE.old), "nothing is changed"),
        (replace(ONE, tests=("test_gone.py",)), "no test_gone.py"),
    ):
        assert any(told in line for line in misfits([wrong], tree))
    assert misfits([ONE], tree) == []


def test_what_is_caught_and_what_is_not(tree: Path) -> None:
    def read(copy: Path, tests: Tests) -> bool:
        return "blind" in tests[0] or "return 1" in (copy / "code.py").read_text()

    blind = replace(ONE, name="two", tests=("test_blind.py",))
    found = {v.mutation.name: v.caught for v in verdicts([ONE, blind], run=read, root=tree)}
    assert found == {"one": "caught", "two": "not caught"}
    (only,) = verdicts([ONE], run=lambda copy, tests: False, root=tree)
    assert only.caught == "fails unbroken"
    assert "return 1" in (tree / "code.py").read_text()


@pytest.mark.process
def test_tests_run_on_the_copy(tree: Path) -> None:
    (tree / "__init__.py").touch()
    with copied(tree) as copy:
        assert passes(copy, ONE.tests)
        with broken(copy, ONE):
            assert not passes(copy, ONE.tests)
        assert passes(copy, ONE.tests)


@pytest.mark.process
def test_the_script_says_what_was_caught(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = [run.Verdict(ONE, "caught", 1.0), run.Verdict(ONE, "not caught", 1.0)]
    monkeypatch.setattr(run, "verdicts", lambda *_: iter(told))
    assert run.main([]) == 1
    assert "1 of 2 caught" in capsys.readouterr().out
    monkeypatch.setattr(run, "verdicts", lambda *_: iter(told[:1]))
    assert run.main([]) == 0
    assert run.main(["--only", "no such mutation"]) == 2
    assert run.main(["--check"]) == 0
    monkeypatch.setattr(run, "MUTATIONS", [ONE])
    assert run.main(["--check"]) == 2
