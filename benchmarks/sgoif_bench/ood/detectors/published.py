"""Numbers that authors publish for each of their sets of images, and which of them a network takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Numbers = TypeVar("Numbers")


def of_classes(published: Mapping[int, Numbers], classes: int) -> Numbers:
    """What is published for the largest set with no more classes than these; for fewer than any has, the smallest."""
    return published[max((known for known in published if known <= classes), default=min(published))]
