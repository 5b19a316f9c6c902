"""Hands what an audit found to the tools people already use: cleanlab's Datalab and FiftyOne."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from sgoif.audit.errors import AuditError
from sgoif.audit.outputs import COLUMNS
from sgoif.core.score_table import Array, ScoreTable, from_cell, texts
from sgoif.errors import MissingExtraError
from sgoif.images.errors import ImagesError
from sgoif.images.sources.csv_table import read_csv

NUMBERS = tuple(name for name in COLUMNS if name not in ("path", "is_label_issue", "given_label", "predicted_label"))
REQUIRED = ("path", "is_label_issue", "label_score", "given_label", "predicted_label")


def read_table(run: str | Path) -> ScoreTable:
    """The table of a finished audit, from its run directory or from issues.csv itself."""
    path = Path(run)
    path = path / "issues.csv" if path.is_dir() else path
    try:
        found = read_csv(path, REQUIRED)
    except ImagesError as error:
        raise AuditError(f"{error}. Give the run directory of a finished audit") from error
    if not set(REQUIRED) <= set(found.header):
        raise AuditError(f"{path} is not a table of an audit: expected the columns {', '.join(REQUIRED)}")
    try:
        cells = zip(*found.rows, strict=True) if found.rows else [()] * len(found.header)
        columns = dict(zip(found.header, cells, strict=True))
        return ScoreTable({name: _column(name, values) for name, values in columns.items()})
    except ValueError as error:
        raise AuditError(f"{path} was changed so that it cannot be read any more: {error}") from error


def _column(name: str, values: tuple[str, ...]) -> Array:
    if name == "is_label_issue":
        return np.array([value.strip().lower() == "true" for value in values], dtype=bool)  # Excel writes TRUE
    if name in NUMBERS:
        return np.array([float(value) for value in values], dtype=np.int64 if name == "n_observations" else np.float64)
    return texts(from_cell(value) for value in values)


def to_datalab(table: ScoreTable, data: Any = None, *, label_name: str = "label") -> Any:
    """A cleanlab `Datalab` that holds the label issues of an audit, as if its own check had found them.

    `table` is `AuditResult.table`. Without `data` the Datalab is about the paths and labels of the table, row by row;
    otherwise `data` is what Datalab takes, in the table's order, with the given labels as `label_name`.
    """
    try:
        from cleanlab import Datalab
    except ImportError as error:
        raise MissingExtraError("cleanlab[datalab]", "datalab", "to_datalab()") from error
    import pandas

    _check(table)
    if data is None:
        data = {"path": list(table["path"]), label_name: list(table["given_label"])}
    lab = Datalab(data, label_name=label_name, verbosity=0)
    if len(lab.labels) != len(table):
        raise AuditError(
            f"data has {len(lab.labels)} examples, the table {len(table)}; give the same rows in one order"
        )
    label_map = lab._label_map  # noqa: SLF001  (Datalab numbers the classes itself and tells it nowhere else)
    number_of = {str(class_name): int(number) for number, class_name in label_map.items()}
    given = np.asarray([number_of.get(str(name), -1) for name in table["given_label"]])
    wrong = np.flatnonzero(given != np.asarray(lab.labels))
    if len(wrong):
        row = int(wrong[0])
        raise AuditError(
            f"data and table differ in {len(wrong)} labels, the first in row {row} ({table['path'][row]!r}); give data"
            " in the order of the table"
        )
    predicted = [number_of.get(str(name), int(own)) for name, own in zip(table["predicted_label"], given, strict=True)]
    score = np.nan_to_num(table["label_score"].astype(np.float64), nan=1.0)
    found = pandas.DataFrame({"is_label_issue": table["is_label_issue"].astype(bool), "label_score": score})
    lab.data_issues.collect_issues_from_issue_manager(
        SimpleNamespace(
            issue_name="label",
            issues=found,
            summary=pandas.DataFrame({"issue_type": ["label"], "score": [float(score.mean())]}),
            info={
                "num_label_issues": int(found["is_label_issue"].sum()),
                "average_label_quality": float(score.mean()),
                "given_label": given.tolist(),
                "predicted_label": predicted,
            },
        )
    )
    return lab


def to_fiftyone(table: ScoreTable, root: str | Path, *, name: str | None = None, dataset: Any = None) -> Any:
    """A FiftyOne data set with the given label, the suggested one and the scores of every image.

    `root` is the folder that the table's paths start from. With `dataset` the fields are added to its samples, which
    are found by their file; images that it does not have are left out.
    """
    try:
        import fiftyone
    except ImportError as error:
        raise MissingExtraError("fiftyone", "fiftyone", "to_fiftyone()") from error
    _check(table)
    files = [str((Path(root) / path).resolve()) for path in table["path"]]
    missing = [path for path in files[:20] if not Path(path).is_file()]
    if missing:
        raise AuditError(f"{missing[0]!r} is not a file; give the folder that the table's paths start from as root")
    target = fiftyone.Dataset(name) if dataset is None else dataset
    known = None if dataset is None else {str(Path(s.filepath).resolve()): s for s in dataset}
    new = []
    for row, path in enumerate(files):
        sample = fiftyone.Sample(filepath=path) if known is None else known.get(path)
        if sample is None:
            continue
        sample["ground_truth"] = fiftyone.Classification(label=str(table["given_label"][row]))
        probability = _number(table["probability_wrong"][row])
        sample["suggested_label"] = fiftyone.Classification(
            label=str(table["predicted_label"][row]), confidence=probability
        )
        sample["is_label_issue"] = bool(table["is_label_issue"][row])
        for column in NUMBERS:
            sample[column] = _number(table[column][row])
        if known is None:
            new.append(sample)
        else:
            sample.save()
    if new:
        target.add_samples(new)
    return target


def _number(value: Any) -> float | int | None:
    """A plain number; what is not known becomes None, which FiftyOne leaves empty."""
    plain = value.item() if isinstance(value, np.generic) else value
    return None if plain != plain else plain


def _check(table: ScoreTable) -> None:
    missing = [name for name in REQUIRED if name not in table.columns]
    if missing:
        raise AuditError(
            f"the table has no column {', '.join(missing)}; give the table of an audit (AuditResult.table, or"
            " read_table(run directory))"
        )
