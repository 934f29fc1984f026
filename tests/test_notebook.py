"""examples/fusion.ipynb runs from top to bottom, and says where its figures come from.

In a process of its own with small sizes, as `FUSION_QUICK=1` makes them, and without a GPU.
"""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOK = Path(__file__).resolve().parent.parent / "examples" / "fusion.ipynb"


def printed(cell) -> str:
    """All text that a cell shows."""
    found = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        found.append(output.get("text") or data.get("text/markdown") or data.get("text/plain", ""))
    return "\n".join(found)


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("FUSION_QUICK", "1")
    patch.setenv("CUDA_VISIBLE_DEVICES", "")
    # Of the one kernel that Inductor compiles here, headers of its own would take longer.
    patch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
    patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("notebook")))
    patch.delenv("TRITON_INTERPRET", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    try:
        nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    finally:
        patch.undo()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_no_outputs_are_kept_in_the_file():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.process
def test_it_runs_without_a_gpu_and_says_so(cells):
    text = "\n".join(map(printed, cells))
    assert "figures are predicted by the cost model for NVIDIA H200, not measured" in text
    tables = [part for part in map(printed, cells) if "| --- |" in part]
    assert len(tables) == 7
    assert all("*Figures: " in part for part in tables)
    times = [part for part in tables if "us" in part.split("|")[2]]
    assert times
    assert all("not measured" in part for part in times)


def test_nothing_is_written_to_stderr(cells):
    errors = [o.text for c in cells for o in c.outputs if o.get("name") == "stderr"]
    assert not errors


def test_a_chain_of_four_moves_a_quarter_of_the_bytes_in_one_kernel(cells):
    text = "\n".join(map(printed, cells))
    assert "fusion moves 4.0 times fewer bytes" in text
    assert re.search(r"fusionplan runs: +fused_mul_add_relu_sqrt\n", text)
    assert "def fused_mul_add_relu_sqrt(in0, out0):" in text


def test_its_figures_are_plotted(cells):
    plots = [o for c in cells for o in c.outputs if "image/png" in o.get("data", {})]
    assert len(plots) == 2


def test_a_plan_shows_itself(cells):
    data = [o.get("data", {}) for c in cells for o in c.outputs]
    shown = [each["text/html"] for each in data if "text/html" in each]
    assert any('class="fusionplan"' in html and "sqrt" in html for html in shown)
