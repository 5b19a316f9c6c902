"""What a person looks at after a run."""

from sgoif.reports.label_report import write_label_report

__all__ = ["write_label_report"]
