"""One model, called once: what bench/startup.py runs in a new process, by its path.

Not a module of the package for its own sake: eager and torch.compile start without importing us.
Arguments: file, model, inputs (names in the file, "" for those of `planner tune`), device, way,
store ("" for the default), bundle ("" for none). Prints the seconds of its phases as JSON: torch
(imported), model (made, with its inputs), import (of Dynamo and ours), first and second (call), and
of our way those of `planner.runtime.phases`; at: when the first result was there, by `time.time`.
"""

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

EAGER, COMPILED, OURS, BUNDLED = "eager", "torch.compile", "fusionplan.load", "bundle"


def main(
    file: str, model: str, inputs: str, device: str, way: str, store: str, bundle: str = ""
) -> None:
    begin = time.perf_counter()
    import torch

    seconds = {"torch": time.perf_counter() - begin}
    begin = time.perf_counter()
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
    seconds["model"] = time.perf_counter() - begin
    begin = time.perf_counter()
    fast = made_fast(made, way, store, bundle)
    seconds["import"] = time.perf_counter() - begin
    with torch.no_grad():
        for turn in ("first", "second"):
            begin = time.perf_counter()
            fast(*arguments)
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            seconds[turn] = time.perf_counter() - begin
            seconds.setdefault("at", time.time())
    if way in (OURS, BUNDLED):
        from fusionplan.planner.runtime.phases import SECONDS

        seconds |= SECONDS
    print(json.dumps(seconds))


def made_fast(model: Any, way: str, store: str, bundle: str) -> Any:
    if way == EAGER:
        return model
    if way == COMPILED:
        import torch._dynamo

        return torch.compile(model)
    import fusionplan

    if way == BUNDLED:
        return fusionplan.load(model, bundle=bundle, on_miss="error")
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
