"""The trials of a tune as Optuna studies in the store's own database, for optuna-dashboard.

They are written after the measuring: a trial in Optuna's tables costs 24 ms, in ours a tenth. What
is missing there is read from ours, so that nothing is lost with a tune that was killed, and nothing
is there twice where several tune at once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, get_args, get_type_hints

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from ...db.errors import StoreError
from ...db.records import TrialRecord
from ...db.store import Store
from ...planner.config import Config
from ...planner.errors import line_of
from .ledger import Ledger

_HINTS = get_type_hints(Config)  # The choices of what has names, such as how a reduction is walked.
_MOST = 1 << 31
_STATES = {"timed": TrialState.COMPLETE, "rejected": TrialState.PRUNED}


CLAIM_S, WAIT_S = 60.0, 30.0
"""Seconds that a study is one tuner's to write, and that another waits for it."""


def mirror(store: Store, ledger: Ledger, is_over: Callable[[], bool] = lambda: False) -> str | None:
    """Bring the studies of a tune's groups up to what the store has, whoever tried it: made where
    there is none, each trial once. Why it could not, or None: the plan does not depend on it.
    is_over: whether the rest is left to a later tune."""
    if not ledger.studies:
        return None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with _alone(store, ledger, "tables") as is_ours:
            # Optuna makes the tables that it finds missing: of two tuners at once one fails.
            if not is_ours:
                return None
            storage = optuna.storages.RDBStorage(store.url)
        for name in sorted(ledger.studies):
            if is_over():
                return None
            _bring(name, store, ledger, storage)
    except (
        SQLAlchemyError,
        StoreError,
        optuna.exceptions.OptunaError,
        RuntimeError,
        ValueError,
    ) as error:
        return f"the trials are not in Optuna's tables: {line_of(error)}"
    return None


def _bring(name: str, store: Store, ledger: Ledger, storage: optuna.storages.RDBStorage) -> None:
    codegen = ledger.versions["codegen"]
    trials = [
        trial
        for trial in store.trials(study=name, device_key=ledger.device_key)
        if trial.versions.get("codegen") == codegen
    ]
    if not trials:
        return
    # Kernels of other text are another study.
    title = f"{name} {ledger.device_key[:8]} {codegen}"
    with _alone(store, ledger, title) as is_ours:
        if not is_ours:
            return  # whoever is at it reads the same trials, and so does the next tune
        study = optuna.create_study(
            storage=storage, study_name=title, direction="minimize", load_if_exists=True
        )
        kept = study.get_trials(deepcopy=False)
        known = {(t.user_attrs.get(_ID), t.user_attrs.get("outcome")) for t in kept}
        older = Counter(_content(t) for t in kept if _ID not in t.user_attrs)
        study.add_trials(
            [
                made
                for made in _frozen(trials)
                if (made.user_attrs[_ID], made.user_attrs["outcome"]) not in known
                and not older[_content(made)]
            ]
        )


@contextmanager
def _alone(store: Store, ledger: Ledger, what: str) -> Iterator[bool]:
    """Whether this tuner is the only one at it; else it has waited for one that still is."""
    until = time.monotonic() + WAIT_S
    while not store.claim_name(f"mirror {what}", ledger.holder, CLAIM_S):
        if time.monotonic() > until:
            yield False
            return
        time.sleep(0.1)
    try:
        yield True
    finally:
        store.release(ledger.holder)


_ID = "trial"
"""What a trial of ours is called in Optuna's tables by: its id in the store."""


def _content(trial: FrozenTrial) -> str:
    """What tells a trial without our id, of an older version, from others."""
    return repr((sorted(trial.params.items(), key=lambda pair: pair[0]), trial.value))


def _frozen(records: Sequence[TrialRecord]) -> Iterable[FrozenTrial]:
    params = [_params(r.config) for r in records]
    distributions = _distributions(params)
    for record, chosen in zip(records, params, strict=True):
        state = _STATES.get(record.outcome, TrialState.FAIL)
        known = {
            _ID: record.id,
            "predicted_s": record.predicted_s,
            "registers": record.registers,
            "spill_bytes": record.spill_bytes,
            "outcome": record.outcome,
            "reason": record.reason,
            # The best of a study may be a call of the vendor, as in `planner history`.
            "lowering": record.config.get("lowering"),
            "options": record.config.get("options"),
        }
        made = create_trial(
            state=state,
            value=record.measured_s if state == TrialState.COMPLETE else None,
            params=chosen,
            distributions={name: distributions[name] for name in chosen},
            user_attrs={k: v for k, v in known.items() if v is not None},
        )
        # Optuna's times are local ones without a zone, and by default those of the export. The
        # store has of a trial when it ended and how long it compiled; it does not keep the rest.
        made.datetime_complete = record.created_at.astimezone().replace(tzinfo=None)
        made.datetime_start = made.datetime_complete - timedelta(seconds=record.compile_s or 0.0)
        yield made


def _params(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config flat: blocks by axis beside the rest. Nothing of what is not generated."""
    if "blocks" not in config:
        return {}
    flat = {k: v for k, v in config.items() if k not in ("blocks", "lowering")}
    return {**dict(config["blocks"]), **flat}


def _distributions(params: Sequence[Mapping[str, Any]]) -> dict[str, BaseDistribution]:
    """The same in every tune, whatever was tried: Optuna refuses a study where they differ."""
    named = {name: value for chosen in params for name, value in chosen.items()}
    return {name: _distribution(name, value) for name, value in named.items()}


def _distribution(name: str, value: Any) -> BaseDistribution:
    if isinstance(value, bool):
        return CategoricalDistribution((False, True))
    if isinstance(value, int):
        return IntDistribution(0, _MOST)
    return CategoricalDistribution(get_args(_HINTS[name]))
