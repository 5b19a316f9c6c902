"""What a person looks at after a run."""

from sgoif.reports.labels import write_label_report

__all__ = ["write_label_report"]
