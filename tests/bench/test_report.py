"""Tables, the verdict, and reports joined, from invented results."""

import json
from dataclasses import replace

import pytest
from fusionplan.bench.result import (
    EAGER,
    OURS,
    REPORT,
    REWRITTEN,
    Against,
    CountedTraffic,
    Errors,
    Machine,
    Missing,
    Predicted,
    Timing,
)
from fusionplan.bench.run import BenchError, joined
from fusionplan.bench.table import BEGIN, END, geometric_mean, markdown, write
from fusionplan.bench.verdict import faults, faults_of
from fusionplan.bench.workloads import WORKLOADS
from fusionplan.planner.costs.device import H200 as H200_PROFILE
from fusionplan.planner.errors import FusionplanError


def test_a_report_survives_json(measured, report):
    whole = report(measured(tune_s=31.5, extra_bytes={"fusionplan": 5}), host=True, rotary="broken")
    assert REPORT.validate_json(REPORT.dump_json(whole)) == whole


H200 = Machine("NVIDIA H200", "2.11.0", "3.6.0", "3.12.1", "555.0")
TRAFFIC = CountedTraffic(30 * 2**20, 10 * 2**20, 80 * 2**20, 25e-6, 2, Predicted(32 * 2**20))


def cells_of(text, start, number=0):
    rows = [line for line in text.splitlines() if line.startswith(start)]
    return [cell.strip() for cell in rows[number].strip("|").split("|")]


def test_a_report_with_bytes_and_limits_survives_json(measured, report):
    whole = report(
        measured("attn_naive", traffic=TRAFFIC),
        measured("splade_head", traffic=Missing("no ncu")),
        measured("rotary"),
    )
    again = REPORT.validate_json(REPORT.dump_json(whole))
    assert again == whole
    assert again.asked["splade_head"].reach_s == pytest.approx(1.3e-3)
    assert "rotary" not in again.asked


def test_a_report_from_before_limits_is_read(measured, report):
    data = json.loads(REPORT.dump_json(report(measured())))
    del data["asked"], data["workloads"][0]["traffic"]
    assert REPORT.validate_json(json.dumps(data)) == report(measured())


def test_reach_memory_and_rewritten_have_their_columns(measured, report):
    times = measured().times | {REWRITTEN: Timing(50e-6, (50e-6,), 1e-6, 200)}
    extra = {OURS: 8 * 2**20, EAGER: 512 * 2**20}
    text = markdown(
        report(
            measured("matmul_rowmax", extra_bytes=extra),
            measured("attn_naive", times=times),
            measured("rotary"),
        )
    )
    head = cells_of(text, "| workload")
    first, second, third = (cells_of(text, f"| {n}") for n in ("matmul", "attn", "rotary"))
    assert head[6:9] == ["flex (rewritten by hand)", "reach", "fusionplan"]
    assert first[6:9] == ["-", "420.0", "**80.0**"]
    assert second[6:8] == ["50.0", "1820.0"]
    assert third[6:8] == ["-", "-"]
    assert cells_of(text, "| matmul", 1)[4] == "8.0 of 4.0 (512.0)"


def test_without_any_of_these_the_table_is_as_it_was(measured, report):
    text = markdown(report(measured()))
    assert "reach" not in text
    assert "flex" not in text
    assert "HBM" not in text


def test_bytes_stand_beside_the_models(measured, report):
    parts = replace(TRAFFIC, predicted=Predicted(16 * 2**20, whole=False))
    text = markdown(
        report(
            measured(traffic=TRAFFIC),
            measured("rotary", traffic=parts),
            measured("softmax_rows", traffic=replace(TRAFFIC, predicted=Predicted(None, False))),
            measured("sigmoid_tanh", traffic=Missing("no program ncu")),
        )
    )
    chain = ["30.0", "10.0", "32.0", "1.25", "80.0", "2", "25.0"]
    assert cells_of(text, "| article_chain", 2)[1:] == chain
    assert cells_of(text, "| rotary", 2)[3:5] == ["at least 16.0", "2.50"]
    assert cells_of(text, "| softmax_rows", 2)[3:5] == ["-", "-"]
    assert text.count("| sigmoid_tanh") == 2
    assert "- sigmoid_tanh: bytes not counted: no program ncu" in text


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
    floor = WORKLOADS["article_chain"].floor_s(H200_PROFILE)
    assert cells[1:] == [
        *("300.0", "100.0", "-", "-", "-", "**80.0**", "1.0%"),
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
        ("article_chain", {"accuracy": Errors(1.0, 0.1, "result 0: error")}, "result 0: error"),
        ("article_chain", {"traffic": TRAFFIC}, None),
        ("article_chain", {"traffic": Missing("no ncu")}, "bytes not counted: no ncu"),
        ("matmul_rowmax", {"extra_bytes": {OURS: 4 * 2**20}}, None),
        (
            "matmul_rowmax",
            {"extra_bytes": {OURS: 5 * 2**20}},
            "takes 5.0 MiB of memory, more than 4.0",
        ),
        ("colbert_maxsim", {"machine": H200, "kernels": 3, "lowerings": ("aten", "triton")}, None),
    ],
)
def test_faults(measured, name, changes, fault):
    found = faults_of(measured(name, **changes), WORKLOADS[name])
    assert (found == []) if fault is None else (len(found) == 1 and found[0].startswith(fault))


@pytest.mark.parametrize(
    "microseconds, machine, fault",
    [
        (170.0, H200, None),
        (190.0, H200, "reach 0.17 ms missed: 0.19"),
        (170.2, H200, "reach 0.17 ms missed: 0.1702"),
        (190.0, replace(H200, device="Another GPU"), None),
    ],
)
def test_a_missed_reach_is_a_fault_on_the_device_it_is_for(measured, microseconds, machine, fault):
    seconds = microseconds * 1e-6
    times = measured().times | {OURS: Timing(seconds, (seconds,), 1e-6, 200)}
    slow = measured("linear_smallk_gelu", times=times, machine=machine)
    assert faults_of(slow, WORKLOADS["linear_smallk_gelu"]) == ([fault] if fault else [])


def test_a_missed_reach_does_not_excuse_a_slower_plan(measured):
    times = measured().times | {OURS: Timing(0.3e-3, (0.3e-3,), 1e-6, 200)}
    slower = Against("default", 1.05, 1.04, 1.06)
    slow = measured("linear_smallk_gelu", times=times, machine=H200, best=slower)
    found = faults_of(slow, WORKLOADS["linear_smallk_gelu"])
    assert found == ["5.0% slower than default", "reach 0.17 ms missed: 0.3"]


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
    assert joined(report(measured("rbf_matvec")), later).asked.keys() == {"rbf_matvec"}
    assert whole.host == earlier.host
    assert "softmax_rows" in markdown(whole)


def test_reports_of_two_machines_are_not_joined(measured, report):
    other = measured(machine=replace(measured().machine, device="Another"))
    with pytest.raises(BenchError, match="Another"):
        joined(report(measured()), report(other))
