"""examples/decode.py generates the tokens that eager does."""

import importlib.util
from pathlib import Path

import pytest
import torch
from fusionplan import api
from fusionplan.planner.runtime.machine_code.compile import interpreted

pytestmark = [
    pytest.mark.dynamo,
    pytest.mark.interpreter,
    pytest.mark.usefixtures("few_looks"),
]

FILE = Path(__file__).resolve().parents[1] / "examples" / "decode.py"


@pytest.mark.parametrize("count", [16, pytest.param(80, marks=pytest.mark.slow)])
def test_the_tokens_are_those_of_eager(count, monkeypatch, capsys) -> None:
    """Tokens of float32, at every position of the caches of a length; by one graph of ours."""
    if not interpreted():
        pytest.skip("on a GPU it is a program to run by hand")
    torch._dynamo.reset()
    spec = importlib.util.spec_from_file_location("decode_example", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loaded, make = [], api.step
    monkeypatch.setattr(
        "fusionplan.step", lambda *x, **named: loaded.append(make(*x, **named)) or loaded[-1]
    )
    found = module.main(["--tokens", str(count)])
    assert len(found["eager"]) == count
    assert found["fusionplan"] == found["eager"]
    assert len(set(found["eager"])) > 1
    (runner,) = api.executors(loaded[0])
    assert runner.kernels_per_call >= 2
    assert len(runner.captured.updates) == 4
    assert not any(update.is_copied for update in runner.captured.updates)
    assert "other tokens" not in capsys.readouterr().out
