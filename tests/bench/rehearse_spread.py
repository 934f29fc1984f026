"""`bench.spread` by plans after few looks at the cost model, in two processes, as `torchrun` starts
them. Arguments: a folder for what they print, and those of `bench.spread`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fusionplan.bench import spread

sys.path.insert(0, str(Path(__file__).parents[1]))
from few_looks import look_little
from ranks import forked_ranks

RANKS = 2


def main(rank: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    sys.exit(spread.main(sys.argv[2:]))


if __name__ == "__main__":
    look_little(setattr)
    sys.exit(forked_ranks(RANKS, Path(sys.argv[1]), main))
