"""`python -m mutations`, with tests/ on the path."""

import sys

from mutations.run import main

if __name__ == "__main__":
    sys.exit(main())
