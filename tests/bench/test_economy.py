"""The economy of the search, on times from the model: what is compared, told and refused."""

import random
import sys
from pathlib import Path

import pytest
from fusionplan.bench import economy as module
from fusionplan.bench.economy import _RECORDING, MeasuredSpace, SpaceRecording, economy, main, small
from fusionplan.bench.economy_report import _table, reached
from fusionplan.bench.replay import MeasuredConfig, curve, random_curve, searched
from fusionplan.planner.costs.cost import Cost
from fusionplan.planner.costs.device import H200
from fusionplan.planner.graph.graph import Graph, Node, Ref, TensorType, to_json
from fusionplan.planner.space.space import Space, space_of
from fusionplan.tuner.workers.lab import Group

WIDE, ROW = (
    TensorType((1 << 13, 1 << 12), (1 << 12, 1), "bfloat16"),
    TensorType((1 << 13, 1), (1, 1), "bfloat16"),
)
GRAPH = Graph(
    (
        Node(0, "x", "input", type=WIDE),
        Node(1, "top", "aten.amax.default", (Ref(0), (1,), True), type=ROW),
        Node(2, "low", "aten.sub.Tensor", (Ref(0), Ref(1)), type=WIDE),
    ),
    (2,),
)


@pytest.fixture(scope="module")
def space() -> MeasuredSpace:
    """Times near the model's; a few configs fail, in the compiler or on the device."""
    whole = space_of(GRAPH, H200)
    assert isinstance(whole, Space)
    source, trials = random.Random(0), []
    for number, config in enumerate(small(whole, 60)):
        cost = whole.judge(config)
        assert isinstance(cost, Cost)
        if number % 13 == 5:
            trials.append(MeasuredConfig(config, None, 2.0, 0.0, "ptxas gave up"))
        elif number % 17 == 5:
            trials.append(MeasuredConfig(config, None, 1.0, 0.1, "out of device memory"))
        else:
            seconds = cost.seconds * source.uniform(0.9, 1.4)
            trials.append(MeasuredConfig(config, seconds, 1.0, 0.1))
    return MeasuredSpace("rows", dict(to_json(GRAPH)), 1e-3, tuple(trials))


def test_a_small_space_has_configs_from_end_to_end():
    whole = space_of(GRAPH, H200)
    assert isinstance(whole, Space)
    some, most = small(whole, 20), small(whole, 10**6)
    assert (len(some), len(set(some))) == (20, 20)
    assert set(some) < set(most)
    assert len({config.num_warps for config in some}) > 2


def test_a_search_tries_measured_configs_once_each(space: MeasuredSpace):
    taken = searched(Group.of(GRAPH, "rows"), H200, space.trials, space.aten_s, 30)
    assert len(taken) == len({trial.config for trial in taken}) == 30
    assert set(taken) <= set(space.trials)
    assert any(trial.seconds is None for trial in space.trials)


def test_curves_fall_and_stay_where_a_search_ended():
    one, two, three = (MeasuredConfig(None, s, 1.0, 0.5) for s in (3e-6, None, 1e-6))  # type: ignore[arg-type]
    assert curve([two, one, three], 5) == (
        (float("inf"), 3e-6, 1e-6, 1e-6, 1e-6),
        (1.5, 3.0, 4.5, 4.5, 4.5),
    )


def test_random_searches_reach_the_best_when_they_try_everything(space: MeasuredSpace):
    best, clock = random_curve(space.trials, len(space.trials), 9, random.Random(1))
    assert best[-1] == space.best_s
    assert list(best) == sorted(best, reverse=True)
    assert list(clock) == sorted(clock)


def test_the_search_is_ahead_of_random_where_the_model_is_good(space: MeasuredSpace):
    found = economy(space, H200)
    assert found.best_s == space.best_s
    assert len(found.ours) == len(found.random) == len(found.ours_clock) == 30
    assert found.ours[4] < found.random[4]
    assert (reached(found.best_s, found.ours) or 99) < (reached(found.best_s, found.random) or 99)
    head, _, row = _table([found])
    assert head.count("|") == row.count("|")
    assert f"{found.best_s / found.ours[4]:.3f}" in row


@pytest.mark.process  # matplotlib looks for fonts when it is first used on a machine
def test_a_recording_is_replayed_from_its_file(space: MeasuredSpace, tmp_path: Path):
    pytest.importorskip("matplotlib")
    recording = SpaceRecording("a test", H200, (space,))
    data = _RECORDING.dump_json(recording)
    assert _RECORDING.validate_json(data) == recording
    (tmp_path / "e.json").write_bytes(data)
    assert main(["--replay", str(tmp_path / "e.json"), "--out", str(tmp_path)]) == 0
    text = (tmp_path / "search-economy.md").read_text()
    assert "\na test\n" in text
    assert "| rows | 60 |" in text
    first = (tmp_path / "search" / "rows.svg").read_text()
    assert "<svg" in first
    main(["--replay", str(tmp_path / "e.json"), "--out", str(tmp_path)])
    assert (tmp_path / "search" / "rows.svg").read_text() == first


def test_what_cannot_be_done_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "e.json").write_text("{}")
    assert main(["--replay", str(tmp_path / "e.json")]) == 1
    assert "is no recording" in capsys.readouterr().err
    assert main(["--replay", str(tmp_path / "none.json")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: False)
    assert main([]) == 1
    assert "on a GPU" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["nothing_of_this_name"])


def test_without_matplotlib_the_way_out_is_named(
    space: MeasuredSpace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    recording = SpaceRecording("a test", H200, (space,))
    (tmp_path / "e.json").write_bytes(_RECORDING.dump_json(recording))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["--replay", str(tmp_path / "e.json"), "--out", str(tmp_path)]) == 1
    assert "pip install fusionplan[plots]" in capsys.readouterr().err
