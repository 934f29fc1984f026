"""`python -m hostile`, with tests/ on the path."""

import sys

from hostile.sweep import main

if __name__ == "__main__":
    sys.exit(main())
