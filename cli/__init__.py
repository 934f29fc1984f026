"""The command line: `planner tune`, `show`, `history`, `doctor`. The entry is `main.main`."""
