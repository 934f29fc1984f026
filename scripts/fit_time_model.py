"""Fits the rates of a GPU's profile to the sample of trials in the tree; needs no GPU.

    python scripts/fit_time_model.py [SAMPLE]

Prints the tables of docs/accuracy.md: by the profile in planner/costs/device.py, and by fits each
of which is judged by the models that it has not seen. Then the rates of the profile fitted to all,
as they would stand in device.py, and whether they are better on what a fit had not seen.
"""

import sys
from dataclasses import fields
from pathlib import Path

from fusionplan.cli.accuracy import as_markdown, compared
from fusionplan.tuner.records import trial_sample

SAMPLE = Path(__file__).resolve().parent / "trials" / "h100.jsonl"


def main(sample: Path) -> None:
    with trial_sample.opened(sample) as store:
        (device,) = store.devices()
        found = compared(store, device)
    print("\n".join(as_markdown(found)))
    if found.refit is None:
        sys.exit("the profile is not fitted: too few trials, or all of one model")
    verdict = "better" if found.refit.is_better else "not better"
    print(f"\nOn models that a fit had not seen it is {verdict}. Fitted to all:\n")
    for field in fields(found.refit.profile):
        value = getattr(found.refit.profile, field.name)
        if value != getattr(found.profile, field.name):
            print(f"{field.name}={value!r},")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLE)
