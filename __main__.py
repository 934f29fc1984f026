"""`python -m fusionplan`: the command `planner`."""

import sys

from fusionplan.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
