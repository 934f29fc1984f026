"""Tables, the verdict, and reports joined, from invented results."""

from dataclasses import replace

import pytest
from fusionplan.bench.result import REPORT, Accuracy, Against
from fusionplan.bench.run import BenchError, joined
from fusionplan.bench.table import BEGIN, END, geometric_mean, markdown, write
from fusionplan.bench.verdict import faults, faults_of
from fusionplan.bench.workloads import WORKLOADS
from fusionplan.planner.errors import FusionplanError


def test_a_report_survives_json(measured, report):
    whole = report(measured(tune_s=31.5, extra_bytes={"planner": 5}), host=True, rotary="broken")
    assert REPORT.validate_json(REPORT.dump_json(whole)) == whole


def test_the_table_has_every_figure(measured, report):
    text = markdown(
        report(
            measured(tune_s=31.5, notes=("default does not run",)),
            host=True,
            rotary="its process died",
        )
    )
    assert "2025-01-02 03:04 UTC, commit abc123, Invented GPU" in text
    row = next(line for line in text.splitlines() if line.startswith("| article_chain"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    floor = WORKLOADS["article_chain"].floor_s
    assert cells[1:] == [
        *("300.0", "100.0", "-", "-", "**80.0**", "1.0%"),
        *("1.250 (1.235-1.266)", f"{80e-6 / floor:.2f}"),
    ]
    assert "| executor | 7.50 |" in text
    assert "- rotary failed: its process died" in text
    assert "- article_chain: default does not run" in text
    assert "| 32 |" in text  # seconds of tuning


def test_all_rows_of_a_table_are_as_long(measured, report):
    lines = markdown(report(measured(), measured("rotary"), host=True)).splitlines()
    for first, *rest in _tables(lines):
        assert {line.count("|") for line in rest} == {first.count("|")}


def _tables(lines):
    table = []
    for line in [*lines, ""]:
        if line.startswith("|"):
            table.append(line)
        elif table:
            yield table
            table = []


def test_the_geometric_mean_of_the_speed_ups(measured, report):
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    slow = measured("rotary", best=Against("eager", 0.2, 0.2, 0.2))
    assert "**2.500**" in markdown(report(measured(), slow))  # of 1.25 and 5


def test_a_report_where_all_failed_has_no_table(report):
    assert "|" not in markdown(report(rotary="no"))


def test_write_replaces_what_is_between_the_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(page, "new\n")
    write(page, "newer\n")
    assert page.read_text() == f"before\n{BEGIN}\nnewer\n{END}\nafter\n"


def test_write_makes_a_file_but_spoils_none(tmp_path):
    write(tmp_path / "new.md", "table\n")
    assert "table" in (tmp_path / "new.md").read_text()
    other = tmp_path / "other.md"
    other.write_text("mine\n")
    with pytest.raises(FusionplanError, match="no lines"):
        write(other, "table\n")
    assert other.read_text() == "mine\n"


@pytest.mark.parametrize(
    "name, changes, fault",
    [
        ("article_chain", {}, None),
        ("article_chain", {"best": Against("eager", 1.019, 1.0, 1.04)}, None),
        ("article_chain", {"best": Against("eager", 1.03, 1.02, 1.04)}, "3.0% slower than eager"),
        ("sigmoid_tanh", {"best": Against("eager", 0.998, 0.99, 1.01)}, "not ahead of eager"),
        ("sigmoid_tanh", {"best": Against("eager", 0.98, 0.97, 0.99)}, None),
        ("article_chain", {"kernels": 2}, "2 generated kernels (triton) instead of 1"),
        ("article_chain", {"kernels": 0, "lowerings": ("inductor",)}, "0 generated kernels (ind"),
        ("article_chain", {"lowerings": ("aten", "triton")}, "1 generated kernels (aten, triton)"),
        ("batchnorm_train_relu", {"kernels": 2}, None),
        ("article_chain", {"accuracy": Accuracy(1.0, 0.1, "result 0: error")}, "result 0: error"),
    ],
)
def test_faults(measured, name, changes, fault):
    found = faults_of(measured(name, **changes), WORKLOADS[name])
    assert (found == []) if fault is None else (len(found) == 1 and found[0].startswith(fault))


def test_a_workload_that_failed_is_a_fault(measured, report):
    found = faults(report(measured(kernels=2), rotary="its process died"), WORKLOADS)
    assert found[0] == "rotary: its process died"
    assert found[1].startswith("article_chain: 2 generated kernels")


def test_joined_reports_keep_what_is_new(measured, report):
    earlier = report(measured(), measured("softmax_rows"), host=True, rotary="broken")
    later = report(measured(kernels=3), measured("rotary"))
    whole = joined(earlier, later)
    assert [m.name for m in whole.workloads] == ["softmax_rows", "article_chain", "rotary"]
    assert whole.workloads[1].kernels == 3
    assert not whole.failed
    assert whole.host == earlier.host
    assert "softmax_rows" in markdown(whole)


def test_reports_of_two_machines_are_not_joined(measured, report):
    other = measured(machine=replace(measured().machine, device="Another"))
    with pytest.raises(BenchError, match="Another"):
        joined(report(measured()), report(other))
