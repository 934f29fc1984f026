"""The command line: `planner tune`, `show`, `history`, `explain`, `doctor`; see `main.main`."""
