"""States of an unlearner in files, without pickle."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch

from sgoif.core.serialization import DAMAGE, load_state, save_state
from sgoif.errors import SettingError, StateError
from sgoif.tasks.unlearning.entries import are_texts
from sgoif.tasks.unlearning.head import HeadData, Objective
from sgoif.tasks.unlearning.inputs import UnlearnerInputs
from sgoif.tasks.unlearning.log import AuditLog
from sgoif.tasks.unlearning.newton import FittedHead
from sgoif.tasks.unlearning.priority import Limits
from sgoif.tasks.unlearning.queries import Queries
from sgoif.tasks.unlearning.records import Request
from sgoif.tasks.unlearning.settings import UnlearnerSettings
from sgoif.tasks.unlearning.state import UnlearnerState

U = TypeVar("U", bound=UnlearnerState)
KIND, VERSION = "unlearner", 1


def save(unlearner: UnlearnerState, path: Path) -> None:
    """Write the state."""
    data, queries, settings, log = unlearner.fitted.data, unlearner.queries, unlearner.settings, unlearner.log
    state = {
        "kind": KIND,
        "version": VERSION,
        "features": data.features,
        "labels": data.labels,
        "ids": unlearner.ids,
        "classes": data.classes,
        "constant": data.constant,
        "bias": data.bias,
        "w": unlearner.fitted.w,
        "query_features": queries.data.features,
        "query_labels": queries.data.labels,
        "query_ids": queries.ids,
        "settings": asdict(settings),
        "class_names": unlearner.class_names,
        "class_totals": unlearner.class_totals,
        "head_name": unlearner.head_name,
        "single": unlearner.single,
        "moved": unlearner.moved,
        "requests": [request.record() for request in unlearner.requests],
        "log": None if log is None else os.path.abspath(log.path),
        "last_hash": unlearner.last_hash,
        "proven": unlearner.proven,
    }
    save_state(path, state)


def load(kind: type[U], path: Path, device: torch.device) -> U:
    """Read the state; the log is named and not looked at."""
    state = _read(path)
    try:
        _check_kinds(state)
        shape: dict[str, Any] = {name: state[name] for name in ("constant", "bias")}
        classes = int(state["classes"])
        data = HeadData(state["features"].to(device), state["labels"].to(device), classes, **shape)
        held = HeadData(state["query_features"].to(device), state["query_labels"].to(device), classes, **shape)
        given = UnlearnerInputs(data, state["ids"], Queries(held, state["query_ids"]), state["class_names"])
        settings = UnlearnerSettings(**{**state["settings"], "limits": Limits(**state["settings"]["limits"])})
        if state["w"].shape != (data.parameters,) or not bool(torch.isfinite(state["w"]).all()):
            raise ValueError("its head does not fit its features")
        fitted = FittedHead(Objective(data, settings.l2), state["w"].to(device))
        made = kind(fitted, given, settings, head_name=state["head_name"], single=state["single"])
        made.class_totals, made.moved = state["class_totals"], state["moved"]
        made.requests = [Request.from_record(found) for found in state["requests"]]
        made.log = None if state["log"] is None else AuditLog(_moved(state["log"], path))
        made.last_hash = state["last_hash"]
        made.proven = bool(state["proven"])
    except (*DAMAGE, SettingError) as error:
        raise StateError(f"{path} is not the state of an unlearner of this version of sgoif ({error})") from error
    return made


def read_log_position(path: Path) -> tuple[str | None, str | None]:
    """The name of the log that a state belongs to, and the hash of the entry that it ends with."""
    state = _read(path)
    log, last = state.get("log"), state.get("last_hash")
    if not isinstance(log, str | None) or not isinstance(last, str | None):
        raise StateError(f"{path} is not the state of an unlearner, or is damaged")
    return None if log is None else Path(log).name, last


def _check_kinds(state: dict[str, Any]) -> None:
    """Raise where a value is of a kind that would only fail later."""
    counts = state["class_totals"]
    for name, sound in (
        ("last_hash", isinstance(state["last_hash"], str | None)),
        ("head_name", isinstance(state["head_name"], str | None)),
        ("moved", isinstance(state["moved"], float | int | None)),
        ("class_totals", isinstance(counts, list) and all(type(count) is int for count in counts)),
        ("class_totals", isinstance(counts, list) and len(counts) == int(state["classes"])),
        *((name, are_texts(state[name])) for name in ("ids", "query_ids", "class_names") if state[name] is not None),
        *(("requests", are_texts(found["ids"])) for found in state["requests"]),
    ):
        if not sound:
            raise ValueError(f"{name} is not what it should be")


def _read(path: Path) -> dict[str, Any]:
    try:
        state = load_state(path)
    except FileNotFoundError as error:
        raise StateError(f"there is no state {path}") from error
    except StateError as error:
        raise StateError(f"{path} is not the state of an unlearner, or is damaged") from error
    if state.get("kind") != KIND or state.get("version") != VERSION:
        raise StateError(f"{path} is not the state of an unlearner of this version of sgoif")
    return state


def _moved(log: str, state: Path) -> Path:
    """Where the log was, or beside the state where both were moved."""
    there, beside = Path(log), state.absolute().parent / Path(log).name
    return beside if not there.exists() and beside.exists() else there
