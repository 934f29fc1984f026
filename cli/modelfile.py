"""Naming a model on the command line: from `file.py`, or `file.py:object`, to the model and the
arguments of a call.

In this order: `file.py:object`; a file with `get_model()` or `model`; a file with a class `Model`.
Inputs come from `--inputs file.py:function` or `--inputs 'float32[3, 5]'`, else from the file's
`get_inputs()` or `example_inputs`. Whatever the user's code raises becomes a ModelError that names
the line.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..planner.errors import ModelError, line_of, summary_of
from ..tuner.capture.capture_model import CallArguments
from .shapes import are_shapes, made_inputs

_INPUTS = ("get_inputs", "example_inputs")


@dataclass(frozen=True, slots=True)
class NamedModel:
    """The model on its device, a call of it, and what to call it in tables."""

    name: str
    model: Callable[..., Any]
    call: CallArguments


def load_model(spec: str, inputs: str | None, device: torch.device) -> NamedModel:
    """The model that the words of a command line mean. Raises ModelError."""
    file, name = _split(spec)
    module = _imported(file)
    model = _placed(_model(file, module, name), device)
    if not callable(model):
        raise ModelError(f"{file}: {name or 'the model'} is {_kind(model)}, which cannot be called")
    return NamedModel(_title(file, name), model, _call(file, module, inputs, device))


_GIVE_PYTHON = "give a Python file that can be imported"
_GIVE_MODEL = "give the path of the Python file of the model"
_GIVE_INPUTS = "give --inputs FILE.py:FUNCTION, or types and shapes, such as 'float32[8, 1024]'"


def _split(spec: str, cure: str = _GIVE_MODEL) -> tuple[Path, str]:
    """File and object. The suffix .py may be left out. cure: for what to do without the file."""
    text, colon, name = spec.rpartition(":")
    if not colon or not all(part.isidentifier() for part in name.split(".")):
        text, name = spec, ""
    path = Path(text).expanduser()
    if not path.suffix and path.name and not path.is_file():
        with_suffix = path.with_name(path.name + ".py")
        path = path if path.is_dir() and not with_suffix.is_file() else with_suffix
    if path.is_dir():
        raise ModelError(f"{path} is a folder: name a Python file in it")
    if not path.is_file():
        raise ModelError(f"there is no file {path}: {cure}")
    return path, name


def _imported(file: Path) -> ModuleType:
    """The file as a module; its folder joins the import path, as when Python runs the file."""
    name = f"planner_model_{file.stem}"
    found = sys.modules.get(name)
    if found is not None and getattr(found, "__file__", None) == str(file.resolve()):
        return found
    # A loader of its own: the file need not end in .py.
    loader = importlib.machinery.SourceFileLoader(name, str(file.resolve()))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except SyntaxError as error:
        where = Path(error.filename).name if error.filename else file.name
        # What is no text at all has no lines.
        place = where if error.lineno is None else f"{where}, line {error.lineno}"
        raise ModelError(f"{place}: {error.msg}; {_GIVE_PYTHON}") from error
    except (Exception, SystemExit) as error:
        if isinstance(error, ValueError) and b"\0" in file.read_bytes():  # before Python 3.11.4
            raise ModelError(f"{file.name}: {error}; {_GIVE_PYTHON}") from error
        raise _blamed(error, file, "importing it fails") from error
    return module


def _model(file: Path, module: ModuleType, name: str) -> Any:
    if name:
        return _made(file, _found(file, module, name), name)
    for found in ("get_model", "model"):
        if hasattr(module, found):
            return _made(file, getattr(module, found), found)
    if inspect.isclass(getattr(module, "Model", None)):
        return _constructed(file, module)
    raise ModelError(
        f"{file.name}: no model found; looked for get_model(), model and a class Model; "
        f"{_offered(module, callable, f'{file.name}:NAME', 'def get_model(): ...')}"
    )


def _made(file: Path, value: Any, name: str) -> Any:
    """The model itself: what a class or a function without parameters gives, else the value."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return value
    needed = _required(value)
    if inspect.isclass(value):
        if needed:
            raise ModelError(
                f"{file.name}: class {name} needs {', '.join(needed)}; name an instance, or a "
                "function without parameters that makes one"
            )
        return _called(file, value, name)
    # A function that takes nothing cannot be a model: it makes one.
    return value if _parameters(value) else _called(file, value, name)


def _constructed(file: Path, module: ModuleType) -> Any:
    """A class `Model` with the arguments that `get_init_inputs` gives for its constructor."""
    make: Any = getattr(module, "get_init_inputs", None)
    given = _called(file, make, "get_init_inputs") if callable(make) else ()
    needed = _required(module.Model)
    if needed and not callable(make):
        raise ModelError(
            f"{file.name}: class Model needs {', '.join(needed)}; write get_model() that makes "
            "one, or get_init_inputs() that gives the arguments"
        )
    if isinstance(given, Mapping):
        return _called(file, module.Model, "Model", **given)
    if not isinstance(given, (tuple, list)):
        given = (given,)
    return _called(file, module.Model, "Model", *given)


def _call(
    file: Path, module: ModuleType, inputs: str | None, device: torch.device
) -> CallArguments:
    name = ""
    if inputs is not None and are_shapes(inputs):
        return CallArguments(made_inputs(inputs, device))
    if inputs is not None:
        file, name = _split(inputs, _GIVE_INPUTS)
        module = _imported(file)
    if name:
        value = _found(file, module, name)
    else:
        name = next((n for n in _INPUTS if hasattr(module, n)), "")
        if not name:
            raise ModelError(
                f"{file.name}: no inputs found; looked for get_inputs() and example_inputs; "
                f"{_offered(module, _may_be_inputs, '--inputs FILE.py:FUNCTION', _MAKE_INPUTS)}, "
                "or give types and shapes: --inputs 'float32[8, 1024]'"
            )
        value = getattr(module, name)
    if callable(value) and not isinstance(value, torch.Tensor):
        wanted = {"device": str(device)} if "device" in _parameters(value) else {}
        value = _called(file, value, name, **wanted)
    try:
        call = CallArguments.of(value)
    except ModelError as error:
        raise ModelError(f"{file.name}: {name}: {error}") from error
    return CallArguments(_moved(call.args, device), _moved(call.kwargs, device))


def _placed(model: Any, device: torch.device) -> Any:
    if not isinstance(model, torch.nn.Module):
        return model
    try:
        return model.to(device)
    except RuntimeError as error:
        raise ModelError(f"the model cannot be moved to {device}: {line_of(error)}") from error


def _moved(value: Any, device: torch.device) -> Any:
    """Tensors in tuples, lists and dictionaries on the device; all else as it is."""
    if isinstance(value, torch.Tensor):
        moved = value.detach().to(device)
        return value if moved.device == value.device else moved.requires_grad_(value.requires_grad)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(v, device) for v in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_moved(v, device) for v in value)
    if isinstance(value, dict):
        return {name: _moved(v, device) for name, v in value.items()}
    return value


def _found(file: Path, module: ModuleType, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise ModelError(
                f"{file.name} has no {name!r}; it has {_contents(module) or 'nothing'}"
            )
        value = getattr(value, part)
    return value


def _called(file: Path, function: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except (Exception, SystemExit) as error:
        raise _blamed(error, file, f"{name}() fails") from error


def _blamed(error: BaseException, file: Path, what: str) -> ModelError:
    """The error with the last line of the user's file that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if f.filename == str(file.resolve())]
    place = f"{file.name}, line {lines[-1]}" if lines else file.name
    return ModelError(f"{place}: {what}: {summary_of(error)}")


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function of C says nothing: it may take anything
        return {"args": inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)}


def _required(function: Callable[..., Any]) -> list[str]:
    wanted = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        name
        for name, p in _parameters(function).items()
        if p.default is p.empty and p.kind in (*wanted, inspect.Parameter.KEYWORD_ONLY)
    ]


_MAKE_INPUTS = "def get_inputs(): ..."


def _offered(module: ModuleType, fits: Callable[[Any], bool], named: str, made: str) -> str:
    """What the file itself defines that fits, for a message, and how to name or to make it."""
    own = _contents(module, fits)
    if not own:
        return f"nothing in the file could be used; write {made}"
    return f"the file has {own}; name one with {named}"


def _contents(module: ModuleType, fits: Callable[[Any], bool] = lambda value: True) -> str:
    own = [
        f"{name} ({_kind(value)})"
        for name, value in vars(module).items()
        if not name.startswith("_") and fits(value) and _is_own(value, module)
    ]
    return ", ".join(own[:8]) + (", ..." if len(own) > 8 else "")


def _may_be_inputs(value: Any) -> bool:
    return callable(value) or isinstance(value, (torch.Tensor, tuple, list, Mapping))


def _is_own(value: Any, module: ModuleType) -> bool:
    """Whether the file made it. Classes and functions say where they come from; what has no such
    name of its own, such as an instance of a class of torch, was made where it is."""
    if inspect.isclass(value) or inspect.isroutine(value):
        return getattr(value, "__module__", None) == module.__name__
    return not inspect.ismodule(value) and getattr(type(value), "__module__", "") != "__future__"


def _kind(value: Any) -> str:
    if inspect.isclass(value):
        return "class"
    return "function" if inspect.isroutine(value) else type(value).__name__


def _title(file: Path, name: str) -> str:
    return f"{file.stem}:{name}" if name else file.stem
