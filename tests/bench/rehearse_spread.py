"""`bench.spread` by plans after few looks at the cost model, as `torchrun` starts it: a process of
each rank."""

from __future__ import annotations

import sys
from pathlib import Path

from fusionplan.bench import spread

sys.path.insert(0, str(Path(__file__).parents[1]))
from few_looks import look_little

if __name__ == "__main__":
    look_little(setattr)
    sys.exit(spread.main())
