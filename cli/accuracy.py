"""`planner accuracy`: how well the cost model knows the kernels that were timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..db import CalibrationRecord, DeviceRecord, Store
from . import render
from .errors import UsageError
from .options import JsonOption, StoreOption

if TYPE_CHECKING:
    from ..planner.costs.device import DeviceProfile
    from ..tuner.model_fit.accuracy import FamilyAccuracy, Hopeless, Read
    from ..tuner.model_fit.refit import Refit

_REACH = {"spearman": 0.90, "within": 0.80, "regret": 0.10, "registers": 0.80}
"""What the project asks of its model."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The accuracy of a device's profiles on the trials of a store. profile: the shipped one;
    refitted: None where trials are too few to fit; its figures are those of trials that the fit
    had not seen."""

    device: DeviceRecord
    profile: DeviceProfile
    read: Read
    shipped: list[FamilyAccuracy]
    refitted: list[FamilyAccuracy]
    hopeless: Hopeless
    refit: Refit | None
    used: CalibrationRecord | None


def accuracy(
    store: StoreOption = None,
    of: Annotated[
        str | None,
        typer.Option(
            "--of",
            metavar="NAME",
            help="The device: its name, or the first characters of its key. Default: the device "
            "with most trials.",
        ),
    ] = None,
    refit: Annotated[
        bool,
        typer.Option(
            "--refit",
            help="Fit the device profile to the trials now. Keep it if it predicts better.",
        ),
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Remove the last calibration of the device.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables in Markdown.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Compare the cost model's predictions with the measured times, by family of kernels.

    This is done twice: with the built-in profile of the device, and with a profile that is fitted
    to the trials in the store. A tune fits the profile by itself when there are enough new trials.
    """
    if undo and refit:
        raise UsageError("--undo and --refit contradict each other: give one of them")
    with Store.open(store, create=False, read_only=not (undo or refit)) as opened:
        chosen = _device(opened, of)
        if undo:
            _undone(opened, chosen, json)
            return
        found = compared(opened, chosen)
        if refit:
            found = _kept(opened, found)
    if json:
        render.print_json(_json(found))
    elif markdown:
        print("\n".join(as_markdown(found)))
    else:
        _print(found)


def _device(store: Store, wanted: str | None) -> DeviceRecord:
    known = store.devices()
    if wanted is not None:
        known = [d for d in known if wanted in (d.name, d.key) or d.key.startswith(wanted)]
    if not known:
        raise UsageError(
            f"the store has no device {wanted!r}" if wanted else "the store has no trials yet"
        )
    return max(known, key=lambda d: store.count_trials(level="kernel", device_key=d.key))


def _undone(store: Store, device: DeviceRecord, json: bool) -> None:
    gone = store.undo_calibration(device.key)
    if gone is None:
        raise UsageError(f"{device.name} has no calibration to undo")
    left = store.calibration(device.key)
    if json:
        render.print_json({"undone": _of(gone), "used": _of(left)})
        return
    now = "the shipped one" if left is None else f"the one {left.source} {left.created_at:%Y-%m-%d}"
    render.out().print(
        f"{device.name}: the profile {gone.source} {gone.created_at:%Y-%m-%d %H:%M} no longer "
        f"counts; the profile is {now}"
    )


def compared(store: Store, device: DeviceRecord) -> Comparison:
    """The shipped profile and a fitted one, by the trials of the device."""
    from ..planner.costs.device import shipped as shipped_profile
    from ..tuner.model_fit.accuracy import accuracy as by_family
    from ..tuner.model_fit.accuracy import hopeless, predicted_s, samples_of
    from ..tuner.model_fit.refit import refit as fitted
    from ..tuner.model_fit.refit import start_of

    profile = shipped_profile(device.profile)
    read = samples_of(store, device.key, profile)
    before = [predicted_s(s, profile) for s in read.samples]
    made = fitted(read.samples, start_of(store, profile))
    return Comparison(
        device,
        profile,
        read,
        by_family(read.samples, before),
        by_family(read.samples, made.unseen_s) if made else [],
        hopeless(read.samples, before),
        made,
        store.calibration(device.key),
    )


def _kept(store: Store, found: Comparison) -> Comparison:
    from dataclasses import replace

    from ..tuner.model_fit.refit import keep

    if found.refit is None or not found.refit.is_better:
        return found
    keep(store, found.refit, found.read.samples)
    return replace(found, used=store.calibration(found.device.key))


def _json(found: Comparison) -> dict[str, Any]:
    made = found.refit
    return {
        "device": {"key": found.device.key, "name": found.device.name},
        "trials": len(found.read.samples),
        "unread": found.read.unread,
        "days": list(found.read.days),
        "versions": {name: list(each) for name, each in found.read.versions.items()},
        "shipped": [asdict(a) for a in found.shipped],
        "refitted": [asdict(a) for a in found.refitted],
        "refit": made and {"factors": dict(made.factors), "is_better": made.is_better},
        "used": _of(found.used),
        "hopeless": asdict(found.hopeless),
        "reach": _REACH,
    }


def _of(record: CalibrationRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "source": record.source,
        "created_at": record.created_at.isoformat(),
        "evidence": record.evidence,
    }


def _print(found: Comparison) -> None:
    out = render.out()
    out.print(f"{found.device.name}: {len(found.read.samples)} kernels timed")
    if found.read.unread:
        out.print(f"{found.read.unread} trials have no kernel any more, or cannot be read")
    if not found.shipped:
        return
    out.print("\nthe shipped profile")
    out.print(_table(found.shipped))
    if found.refit is None:
        out.print("the profile is not fitted: too few trials, or all of one workload")
    else:
        out.print("\nfitted to the trials, each judged by a fit that had not seen its workload")
        out.print(_table(found.refitted))
        factors = ", ".join(f"{name} {f:.2f}" for name, f in found.refit.factors.items())
        verdict = "better" if found.refit.is_better else "not better: it is not used"
        out.print(f"factors: {factors}\non unseen trials the fitted profile is {verdict}")
    used = found.used
    out.print(
        "in use: the shipped profile"
        if used is None
        else f"in use: the profile {used.source} {used.created_at:%Y-%m-%d %H:%M} (--undo ends it)"
    )
    h = found.hopeless
    out.print(f"spilling over 512 bytes: {h.spilled}, of which the model foresaw {h.foreseen}")
    out.print(f"over twice the best of the group: {h.slow}, of which it foresaw {h.foreseen_slow}")


_FIGURES = (
    "kernels",
    "groups",
    "Spearman",
    "within groups",
    "regret",
    "mean regret",
    "top-5 recall",
    "MAPE",
    "registers",
    "learned",
)


def _cells(a: FamilyAccuracy) -> list[str]:
    ranks = [_figure(a.spearman), _figure(a.within)]
    shares = [a.regret, a.mean_regret, a.recall, a.mape, a.registers, a.learned]
    return [a.family, str(a.trials), str(a.groups), *ranks, *map(_share, shares)]


def _table(rows: Sequence[FamilyAccuracy]) -> Any:
    made = render.table("family", *_FIGURES, right=_FIGURES, wide=("family",))
    for a in rows:
        made.add_row(*_cells(a))
    return made


def as_markdown(found: Comparison) -> list[str]:
    """What was measured on what, and both tables."""
    read = found.read
    versions = "; ".join(f"{name} {', '.join(each)}" for name, each in read.versions.items())
    lines = [f"{found.device.name}, measured {' to '.join(read.days)}  ", versions]
    for title, rows in (("Shipped profile", found.shipped), ("Fitted profile", found.refitted)):
        if rows:
            lines += ["", f"{title}:", "", f"| family | {' | '.join(_FIGURES)} |"]
            lines += ["| --- |" + " ---: |" * len(_FIGURES)]
            lines += [f"| {' | '.join(_cells(a))} |" for a in rows]
    h = found.hopeless
    lines += [
        "",
        f"Spilling over 512 bytes: {h.spilled} kernels, {h.foreseen} foreseen. Over twice",
    ]
    lines += [f"the best of their group: {h.slow}, {h.foreseen_slow} foreseen."]
    if found.refit is not None:
        factors = ", ".join(f"{name} {f:.2f}" for name, f in found.refit.factors.items())
        lines += ["", f"Factors of the fit: {factors}."]
    return lines


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}" if value >= 0.1 else f"{value:.1%}"
