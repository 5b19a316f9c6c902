"""Labels judged by the features of shards, as many rows at a time as memory holds: one table of all at the end.

A part is a random sample of the rows. It has heads, neighbours and findings of its own, so parts are judged by any
process in any order, with the same result. What is done is kept: a run that was cut short goes on part by part.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sgoif.audit.progress import Progress
from sgoif.audit.small_classes import unjudged, without_verdict
from sgoif.core.provenance import versions, write_json
from sgoif.core.score_table import write_csv
from sgoif.core.serialization import atomic_write
from sgoif.distributed.communicator import Communicator
from sgoif.distributed.launch import joined
from sgoif.errors import SettingError, SgoifError
from sgoif.images.classes import numbered
from sgoif.images.errors import make_writable, written
from sgoif.images.text import shown
from sgoif.sharded.addresses import ShardError
from sgoif.sharded.dealing import Deal
from sgoif.sharded.feature_files import FeatureFolder, is_complete, pyarrow_for_shards, read_rows
from sgoif.sharded.merging import BY, merged
from sgoif.tasks.crossfit import CrossFit
from sgoif.tasks.crossfit.crossfit import FOLDS, PARTS

PART_ROWS = 1_000_000
MOST_IN_CSV = 1_000_000
"""Rows of issues.csv, the worst ones; issues.parquet has all."""
COLUMNS = ("key", "shard", "given_label", "predicted_label", BY, "is_label_issue", "part")
SUMMARY, PLAN = b"summary", "plan.json"


@dataclass(frozen=True)
class Judged:
    """What was found, on the first process; the others have an empty summary."""

    out: Path
    worst: list[dict[str, Any]]
    """The first rows of the table."""
    summary: dict[str, Any]


def judge_features(
    features: Path,
    out: Path,
    *,
    part_rows: int = PART_ROWS,
    class_names: Sequence[str] | None = None,
    fdr: float = 0.1,
    seed: int = 0,
    device: torch.device = torch.device("cpu"),  # noqa: B008
    show: Progress | None = None,
) -> Judged:
    """Judge the labels of shards by their features; under torchrun every process takes its parts.

    Args:
        features: what `extract_shards` or `ray_features` has written.
        out: a folder that all processes see, for issues.parquet, issues.csv, skipped.csv and summary.json.
        part_rows: rows that are judged together at most, about; memory grows with them, time with their square.
        class_names: name number i takes the place of the label "i".
        fdr: share of right labels that may be among those called wrong.
        seed: of heads.
        device: where heads are trained.
        show: told how far it is.
    """
    arrow = pyarrow_for_shards("Judging features")
    if part_rows < 1 or not 0 < fdr < 1:
        raise SettingError(f"{part_rows:,} rows a part, fdr {fdr}: expected at least 1 row and a share between 0 and 1")
    show, folder = show or Progress(), FeatureFolder(features)
    facts = folder.facts()
    if facts is None or not isinstance(facts.get("width"), int):
        raise ShardError(f"{shown(features)} holds no features; sgoif features SHARDS --out {features} writes them")
    parts = out / "parts"
    deal = Deal(folder, facts["width"], part_rows, parts)
    if not deal.rows:
        raise ShardError(f"{shown(features)} holds no rows; run sgoif features to its end first")
    names = hashlib.sha256("".join(f"{path.name}\n" for path in deal.files).encode("utf-8", "surrogateescape"))
    plan = {
        "features": facts,
        "files": names.hexdigest(),
        "rows": deal.rows,
        "parts": deal.parts,
        "fdr": fdr,
        "seed": seed,
        "class_names": list(class_names or ()),
    }
    tables = [parts / f"table-{number:06}.parquet" for number in range(deal.parts)]
    with joined(device) as others:
        others.run_and_sync_errors(lambda: _agree(out, plan, others))
        missing = [number for number, path in enumerate(tables) if not is_complete(path)]

        def copy() -> None:
            with written(out):
                deal.copy(others.rank, others.size)

        def judge() -> None:
            for number in missing[others.rank :: others.size]:
                show.stage(f"part {number + 1} of {deal.parts}", PARTS * FOLDS)
                found = _judged_part(deal, number, facts["width"], class_names, fdr, seed, device, show)
                with written(out):
                    atomic_write(tables[number], partial(arrow.parquet.write_table, found))

        others.run_and_sync_errors(lambda: None)  # nobody looks for tables while another writes the first of them
        if missing:
            others.run_and_sync_errors(copy)
            others.run_and_sync_errors(judge)
        if others.rank:
            return Judged(out, [], {})
        show.stage("writing the table", deal.rows)
        with written(out):
            return _written_results(out, deal, tables, plan, show)


def _agree(out: Path, plan: dict[str, Any], others: Communicator) -> None:
    """All have the same features before them, and so had who began; the first process notes which."""
    place = out / PLAN
    if others.rank:
        return
    make_writable(out)
    if place.exists():
        try:
            there = json.loads(place.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ShardError(f"{shown(place)} is damaged ({error}); choose another folder with --out") from error
        if there != plan:
            raise ShardError(
                f"{shown(out)} holds a judgement of other features or with other settings; choose another folder with"
                " --out, or delete it"
            )
    write_json(place, plan)


def _judged_part(
    deal: Deal,
    number: int,
    width: int,
    class_names: Sequence[str] | None,
    fdr: float,
    seed: int,
    device: torch.device,
    show: Progress,
) -> Any:
    """The table of one part, worst first."""
    pieces = deal.pieces(number)
    if not pieces:
        raise ShardError(f"part {number + 1} of {deal.parts} has no rows: use larger parts with --part-rows")
    rows = read_rows(pieces, width)
    texts = rows.label if class_names is None else [_named(text, class_names) for text in rows.label]
    labels, classes = numbered(texts)
    try:
        crossfit = CrossFit(rows.features, labels, classes, seed=seed, device=device)
    except SgoifError as error:
        raise ShardError(
            f"part {number + 1} of {deal.parts} cannot be judged: {error}; --part-rows makes parts larger"
        ) from error
    shards, keys = rows.shard, rows.key
    del rows, texts  # the heads have their principal components
    for fold in range(FOLDS):
        crossfit.train(fold, show.advance)
    findings = crossfit.findings()
    rate = findings.noise_rate()
    table = without_verdict(findings.table(fdr), unjudged(labels, crossfit.held, len(classes)), rate.estimate)
    order = np.argsort(-table[BY], kind="stable")
    arrow = pyarrow_for_shards("Writing tables")

    def chosen(values: Sequence[str], index: Any) -> Any:
        return arrow.array(list(values), arrow.string()).take(arrow.array(index))

    columns = {
        "key": chosen(keys, order),
        "shard": chosen(shards, order),
        "given_label": chosen(classes, table["given_label"][order]),
        "predicted_label": chosen(classes, table["predicted_label"][order]),
        BY: table[BY][order].astype(np.float32),
        "is_label_issue": table["is_label_issue"][order],
        "part": np.full(len(order), number, dtype=np.int32),
    }
    said = {"rows": len(order), "classes": classes, "rate": [rate.estimate, rate.low, rate.high],
            "issues": int(table["is_label_issue"].sum()), "told": findings.rate_told}  # fmt: skip
    return arrow.table(columns).replace_schema_metadata({SUMMARY: json.dumps(said)})


def read_class_names(file: Path) -> list[str]:
    """A list of names from a JSON file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ShardError(f"{shown(file)} is not a JSON file: {error}") from error
    if not isinstance(found, list) or not all(isinstance(name, str) and name.strip() for name in found):
        raise ShardError(f'{shown(file)} holds no list of names; expected one such as ["cat", "dog"]')
    return found


def _named(text: str, class_names: Sequence[str]) -> str:
    if not (text.isascii() and text.isdigit() and int(text) < len(class_names)):
        raise ShardError(
            f"the label {shown(text)} has no name among the {len(class_names)} that were given; expected numbers from 0"
        )
    return class_names[int(text)]


def _written_results(out: Path, deal: Deal, tables: Sequence[Path], plan: dict[str, Any], show: Progress) -> Judged:
    """One table of all parts, what was left out, and the summary, which is last and says that all is there."""
    arrow = pyarrow_for_shards("Writing tables")
    parts = [json.loads(arrow.parquet.read_schema(path).metadata[SUMMARY]) for path in tables]
    worst: list[Any] = []

    def write(file: Any) -> None:
        done = count = 0
        schema = arrow.parquet.read_schema(tables[0]).remove_metadata()
        with arrow.parquet.ParquetWriter(file, schema) as to:
            for table in merged(tables):
                to.write_table(table.replace_schema_metadata(None))
                if count < MOST_IN_CSV:
                    worst.append(table.slice(0, MOST_IN_CSV - count))
                    count += len(worst[-1])
                done += len(table)
                show.advance(done, deal.rows)

    atomic_write(out / "issues.parquet", write)
    first = arrow.concat_tables(worst)
    write_csv(out / "issues.csv", COLUMNS, zip(*(first[name].to_pylist() for name in COLUMNS), strict=True))
    skipped = 0

    def left_out() -> Any:
        nonlocal skipped
        for path in deal.files:
            table = arrow.parquet.read_table(path, columns=["key", "shard", "problem"], filters=[("problem", "!=", "")])
            skipped += len(table)
            yield from zip(*(table[name].to_pylist() for name in ("key", "shard", "problem")), strict=True)

    write_csv(out / "skipped.csv", ("key", "shard", "reason"), left_out())
    count = [part["rows"] for part in parts]
    rate = np.average([part["rate"] for part in parts], axis=0, weights=count).tolist()
    summary = {
        "images": sum(count),
        "skipped": skipped,
        "parts": len(parts),
        "classes": len(set().union(*(part["classes"] for part in parts))),
        "selected": sum(part["issues"] for part in parts),
        "noise_rate": dict(zip(("estimate", "low", "high"), rate, strict=True)),
        "rate_told": all(part["told"] for part in parts),
        "plan": plan,
        "versions": versions(),
    }
    write_json(out / "summary.json", summary)
    deal.clear()
    return Judged(out, first.slice(0, 10).to_pylist(), summary)
