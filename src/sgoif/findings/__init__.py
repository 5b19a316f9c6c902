"""What is wrong with a set of images: findings, and the checks that look for them."""

from sgoif.findings.check import Check, Examined
from sgoif.findings.finding import SEVERITIES, Finding, Severity

__all__ = ["SEVERITIES", "Check", "Examined", "Finding", "Severity"]
