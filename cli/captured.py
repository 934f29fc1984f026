"""A model named on the command line, captured; the store beside it; and where its plan is from."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from ..db import Store
from ..db.location import resolve
from . import render

if TYPE_CHECKING:
    from ..planner.graph.graph import Numerics
    from ..tuner.capture.capture_model import CapturedModel
    from ..tuner.records.found_plan import FoundPlan
    from ..tuner.session.place import Place
    from .modelfile import NamedModel


def captured_model(
    model: str,
    inputs: str | None,
    device: str | None,
    target: str | None,
    *,
    training: bool = False,
    dynamic: bool = False,
    numerics: Numerics = "fast",
) -> tuple[str, CapturedModel, Place]:
    """The model's name, its graphs, and where they are planned for."""
    named, place = named_model(model, inputs, device, target)
    captured = captured_graphs(named, training=training, dynamic=dynamic, numerics=numerics)
    return named.name, captured, place


def named_model(
    model: str, inputs: str | None, device: str | None, target: str | None
) -> tuple[NamedModel, Place]:
    """The model with a call of it, and where it is planned for. What the model's own code prints
    goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        from ..tuner.session.place import place_of
        from .modelfile import load_model

        place = place_of(device, target)
        return load_model(model, inputs, place.device), place


def captured_graphs(
    named: NamedModel, *, training: bool = False, dynamic: bool = False, numerics: Numerics = "fast"
) -> CapturedModel:
    """Its graphs."""
    with contextlib.redirect_stdout(sys.stderr):
        from ..tuner.capture.capture_model import capture_model

        return capture_model(
            named.model, named.call, training=training, dynamic=dynamic, numerics=numerics
        )


def opened_store(location: str | None, stack: contextlib.ExitStack) -> Store | None:
    """The store for reading; None where it is not made yet. Raises StoreError for any other that
    cannot be read."""
    place = resolve(location)
    if place.path is not None and not place.path.exists():
        render.err().print(f"planner: there is no store {place.path} yet", soft_wrap=True)
        return None
    return stack.enter_context(Store.open(location, create=False, read_only=True))


def titles(name: str, captured: CapturedModel) -> list[str]:
    """What each graph of a model is called: by the model alone where it has one graph."""
    if len(captured.parts) == 1:
        return [name]
    return [f"{name} {number} {part.stage}" for number, part in enumerate(captured.parts)]


def note(found: FoundPlan, place: Place, store: Store | None) -> str:
    """Where a plan is from, in one line."""
    if found.record is None or store is None:
        where = f"{store.location} has no plan of this for {place.profile.name}; " if store else ""
        return f"{where}this is the cost model's plan, nothing was measured"
    told = f"stored as {found.record.key[: render.KEY]} in {store.location}"
    if found.is_of_other_versions:
        made_with = render.pairs(found.record.versions)
        told += f", made with {made_with}: its kernels may have changed since"
    return told
