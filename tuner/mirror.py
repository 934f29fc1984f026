"""The trials of a tune as Optuna studies in the store's own database, for optuna-dashboard.

They are written after the measuring: a trial in Optuna's tables costs 24 ms, in ours a tenth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args, get_type_hints

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from ..db.records import TrialRecord
from ..planner.config import Config

_HINTS = get_type_hints(Config)  # The choices of what has names, such as how a reduction is walked.
_MOST = 1 << 31
_STATES = {"timed": TrialState.COMPLETE, "rejected": TrialState.PRUNED}


def mirror(url: str, records: Sequence[TrialRecord]) -> str | None:
    """Add the trials to their studies, made where there is none. Why it could not, or None: the
    plan does not depend on it."""
    studies: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.config.get("lowering") == "triton":
            # Kernels of other text are another study.
            name = f"{record.study} {record.device_key[:8]} {record.versions['codegen']}"
            studies.setdefault(name, []).append(record)
    if not studies:
        return None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = optuna.storages.RDBStorage(url)
        for name, trials in studies.items():
            study = optuna.create_study(
                storage=storage, study_name=name, direction="minimize", load_if_exists=True
            )
            study.add_trials(_frozen(trials))
    except (SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError, ValueError) as error:
        return f"the trials are not in Optuna's tables: {str(error).splitlines()[0]}"
    return None


def _frozen(records: Sequence[TrialRecord]) -> Iterable[FrozenTrial]:
    params = [_params(r.config) for r in records]
    distributions = _distributions(params)
    for record, chosen in zip(records, params, strict=True):
        state = _STATES.get(record.outcome, TrialState.FAIL)
        known = {
            "predicted_s": record.predicted_s,
            "registers": record.registers,
            "spill_bytes": record.spill_bytes,
            "outcome": record.outcome,
            "reason": record.reason,
        }
        yield create_trial(
            state=state,
            value=record.measured_s if state == TrialState.COMPLETE else None,
            params=chosen,
            distributions={name: distributions[name] for name in chosen},
            user_attrs={k: v for k, v in known.items() if v is not None},
        )


def _params(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config flat: blocks by axis beside the rest."""
    flat = {k: v for k, v in config.items() if k not in ("blocks", "lowering")}
    return {**dict(config.get("blocks", ())), **flat}


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
