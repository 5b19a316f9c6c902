"""A review of a finished run: what to look at next, what was decided, and what that says. Every decision is kept."""

from collections.abc import Iterator
from pathlib import Path

from sgoif.audit.decisions import (
    COLUMNS,
    DROP,
    FINDING,
    KEEP,
    RELABEL,
    SKIP,
    SPLIT,
    Decision,
    DecisionsError,
    read_decisions,
)
from sgoif.audit.errors import RunDirectoryError
from sgoif.audit.review_plan import REVIEW, read_review_plan, write_review_plan
from sgoif.audit.run_directory import RunDirectory
from sgoif.audit.settings import AuditSettings
from sgoif.core.score_table import from_cell, write_csv
from sgoif.images.sources.csv_table import read_csv
from sgoif.images.text import shown
from sgoif.tasks.review import ReviewEstimate

ISSUES, DECISIONS = "issues.csv", "decisions.csv"


class ReviewSession:
    """The list of a run, its plan, and the decisions in the run directory.

    Args:
        run: run directory of a finished audit.
        decisions: a file of decisions made elsewhere, such as on the page; where both know an image, it decides.
    """

    def __init__(self, run: Path, decisions: Path | None = None) -> None:
        self.run = run
        self.labels = _labels(run)
        """Given and suggested label of every image, by path, the most suspicious first."""
        recorded = RunDirectory(run, AuditSettings(run)).recorded()
        if recorded is None:
            raise RunDirectoryError(f"{shown(run)} is not a run directory of `sgoif audit`: it holds no run.json")
        self.source = Path(AuditSettings.from_record(recorded["settings"]).path).absolute()
        probability = [row[2] for row in self.labels.values()]
        planned = (run / REVIEW).exists()
        self.review = read_review_plan(run) if planned else write_review_plan(run, list(self.labels), probability)
        self.decided: dict[str, Decision] = {}
        self.further: dict[str, Decision] = {}
        """Decisions that say nothing about labels of the list, such as to drop a copy: kept as they are."""
        self._splits = False
        if (run / DECISIONS).exists():
            self._read(run / DECISIONS)
        if decisions is not None:
            self._read(decisions)
            self._save()

    @property
    def class_names(self) -> list[str]:
        """Every label that some image has or should have."""
        return sorted({name for row in self.labels.values() for name in row[:2]})

    def remaining(self, count: int) -> Iterator[str]:
        """Images to look at: the first `count` of the plan, then the list from the top."""
        for path in dict.fromkeys([*self.looks(count), *self.review.index.tolist()]):
            if path not in self.decided and path not in self.further:
                yield path

    def looks(self, count: int) -> list[str]:
        """The first `count` images of the plan, others in the place of those that were skipped."""
        return list(self.review.looks(count, self.skipped).tolist())

    @property
    def skipped(self) -> set[str]:
        """Images that somebody looked at and cannot tell, or decided about for another reason than the label."""
        other = {path for path in self.further if path in self.labels}
        return {path for path, row in self.decided.items() if row.decision == SKIP} | other

    def decide(self, path: str, kind: str, label: str = "") -> None:
        """Take a decision and save all of them."""
        given = self.labels[path][0]
        kind, label = (KEEP, "") if kind == RELABEL and label == given else (kind, label)
        self.decided[path] = Decision(0, path, kind, given, label)
        self.further.pop(path, None)
        self._save()

    def undo(self, path: str) -> None:
        """Take a decision back."""
        if self.decided.pop(path, None) is not None:
            self._save()

    def estimate(self) -> ReviewEstimate:
        """What the decisions say about the whole list."""
        told = {path: row.decision for path, row in self.decided.items() if row.decision != SKIP}
        return self.review.update({path: decision != KEEP for path, decision in told.items()}, self.skipped)

    def _read(self, path: Path) -> None:
        for row in read_decisions(path)[0]:
            self._splits |= row.new_split is not None
            self.decided.pop(row.path, None)
            self.further.pop(row.path, None)
            if not row.judges_label or (row.names_others and row.path not in self.labels):
                self.further[row.path] = row
                continue
            if row.decision not in (KEEP, RELABEL, DROP, SKIP) or row.path not in self.labels:
                what = f"decides {shown(row.decision)} about {shown(row.path)}"
                raise DecisionsError(
                    f"row {row.row} of {shown(path)} {what}; expected is keep, relabel, drop or skip about an image of"
                    f" {shown(self.run / ISSUES)}"
                )
            self.decided[row.path] = row

    def _save(self) -> None:
        decided = [*self.decided.values(), *self.further.values()]
        rows = [[row.path, row.decision, row.given_label, row.new_label, str(self.source)] for row in decided]
        header = list(COLUMNS)
        if self._splits:
            header.append(SPLIT)
            rows = [[*cells, row.new_split or ""] for cells, row in zip(rows, decided, strict=True)]
        if self.further:
            header.append(FINDING)
            rows = [[*cells, row.finding] for cells, row in zip(rows, decided, strict=True)]
        if rows:
            write_csv(self.run / DECISIONS, header, rows)
        else:  # a file without decisions is refused by whoever reads it
            (self.run / DECISIONS).unlink(missing_ok=True)


def _labels(run: Path) -> dict[str, tuple[str, str, float]]:
    """Given label, suggested label and probability of every image of issues.csv, by path."""
    if not (run / ISSUES).is_file():
        raise RunDirectoryError(
            f"{shown(run)} holds no {ISSUES}: expected the run directory of an audit that has come to its end"
        )
    table = read_csv(run / ISSUES)
    try:
        places = [table.column(name) for name in ("path", "given_label", "predicted_label", "probability_wrong")]
        rows = ([cells[place] for place in places] for cells in table.rows)
        return {from_cell(path): (from_cell(given), from_cell(new), float(p)) for path, given, new, p in rows}
    except (ValueError, IndexError) as error:
        raise RunDirectoryError(
            f"{shown(run / ISSUES)} is damaged ({error}); write it again with sgoif audit --resume"
        ) from error
