"""What a block leaves behind when its time is over; `test_wall.py` has when it ends."""

import time

import pytest
import torch
from fusionplan.tuner.measure import time_limit
from fusionplan.tuner.measure.time_limit import OutOfTime, stopped_after
from torch._subclasses import FakeTensorMode

FAKE = torch._C._TorchDispatchModeKey.FAKE


class Slow:
    """Leaves itself after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.left = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            pass
        self.left = True


def enter_and_leave_modes() -> None:
    while True:
        with torch.no_grad(), FakeTensorMode():
            pass


def sleep_after(slow: Slow, went_on: list[bool]) -> None:
    with slow:
        pass
    time.sleep(60.0)
    went_on.append(True)


def test_no_mode_of_torch_outlives_a_block_that_is_ended():
    outlived = 0
    for number in range(80):
        with pytest.raises(OutOfTime), stopped_after(1e-3 + 4e-5 * number):
            enter_and_leave_modes()
        outlived += torch._C._get_dispatch_mode(FAKE) is not None or not torch.is_grad_enabled()
        torch._C._unset_dispatch_mode(FAKE)
        torch.set_grad_enabled(True)
    assert outlived == 0


def test_a_context_is_left_before_the_block_ends():
    slow, went_on = Slow(0.05), list[bool]()
    with pytest.raises(OutOfTime), stopped_after(0.01):
        sleep_after(slow, went_on)
    assert slow.left
    assert not went_on


def test_a_context_that_takes_long_to_leave_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time_limit, "PATIENT_S", 0.05)
    slow = Slow(60.0)
    began = time.monotonic()
    with pytest.raises(OutOfTime), stopped_after(0.01), slow:
        pass
    assert not slow.left
    assert time.monotonic() - began < 30.0
