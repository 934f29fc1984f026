"""The line by which an error is told in a sentence that goes on."""

import pytest
from fusionplan.planner.errors import line_of, summary_of


@pytest.mark.parametrize(
    "message, first, last",
    [
        ("one line", "one line", "one line"),
        ("\n  the source\n\n  its cause \n", "the source", "its cause"),
        ("", "ValueError", "ValueError"),
        (" \n ", "ValueError", "ValueError"),
    ],
)
def test_an_error_is_told_by_one_line(message: str, first: str, last: str):
    error = ValueError(message)
    assert (line_of(error), line_of(error, -1)) == (first, last)
    assert summary_of(error) == ("ValueError" if first == "ValueError" else f"ValueError: {first}")
    assert summary_of(error, -1).endswith(last)


def test_a_library_that_prints_its_data_is_cut_short():
    assert len(line_of(RuntimeError("x" * 100_000))) == 1000
