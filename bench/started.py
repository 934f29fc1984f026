"""One model, called once: what bench/startup.py runs in a new process, by its path.

Not a module of the package for its own sake: eager and torch.compile start without importing us.
Arguments: file, model, inputs (names in the file, "" for those of `planner tune`), device, way,
store ("" for the default).
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

EAGER, COMPILED, OURS = "eager", "torch.compile", "fusionplan.load"


def main(file: str, model: str, inputs: str, device: str, way: str, store: str) -> None:
    module = _module(Path(file))
    with torch.device(device):
        if model:
            made = getattr(module, model)()
        elif hasattr(module, "get_model"):
            made = module.get_model()
        else:
            made = module.Model(*module.get_init_inputs())
    made = made.to(device)
    arguments = getattr(module, inputs or "get_inputs")(device=device)
    with torch.no_grad():
        made_fast(made, way, store)(*arguments)
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def made_fast(model: Any, way: str, store: str) -> Any:
    if way == EAGER:
        return model
    if way == COMPILED:
        return torch.compile(model)
    import fusionplan

    return fusionplan.load(model, store=store or None, on_miss="error")


def _module(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location("started_model", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # torch.compile looks a function's module up by its name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(*sys.argv[1:])
