"""The table of `numeric_cases.py` by compiled kernels, against eager on CUDA.

    PYTHONPATH=tests:tests/planner:tests/planner/numerics \
        python tests/gpu/numerics_gpu.py [family ...]

Prints what differs, and counts. A minute with a cold cache of Triton's.
"""

from __future__ import annotations

import sys

import numeric_cases
import numeric_check
import torch


def main(wanted: list[str]) -> int:
    """0: nothing differs; 1: something does; 2: no GPU."""
    if not torch.cuda.is_available():
        print("no CUDA device", file=sys.stderr)
        return 2
    families = [f for f in numeric_cases.families() if not wanted or f.name in wanted]
    different = 0
    for family in families:
        try:
            lines, others = numeric_check.differences(family)
        except Exception as error:  # noqa: BLE001 - one function of a family may not compile
            print(f"{family.name}: {type(error).__name__}, one by one:")
            lines, others = list(numeric_check.one_by_one(family)), family.untouched
        if tuple(others) != family.untouched:
            lines.append(f"{family.name}: not by a kernel of ours: {others}")
        different += len(lines)
        for line in lines:
            print(f"  {line[:160]}", flush=True)
    functions = sum(len(family.functions) for family in families)
    print(f"{len(families)} families, {functions} functions, {different} differ")
    return int(different > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
