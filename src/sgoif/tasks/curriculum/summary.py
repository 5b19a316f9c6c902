"""What the weights of a curriculum do to a data set, for a person and for a program."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sgoif.tasks.labels.channel import Array, Labels

DOWN = 0.5
"""An example with less weight than this has been weighed down."""
MOST_ROWS = 40
"""Classes that are printed one by one."""


@dataclass(frozen=True)
class ClassBalance:
    """What one class, by given labels, weighs in all."""

    label: int
    examples: int
    before: float
    """Share of the data set without weights."""
    after: float
    """Share of the total weight."""
    weighed_down: int


@dataclass(frozen=True)
class CurriculumReport:
    """The weights at one moment."""

    epochs: float
    """Epochs so far; 0 during the first."""
    judgements: int
    examples: int
    weighed_down: int
    """Examples with a weight below one half."""
    effective_size: float
    """(Σw)² / Σw²: how many equally weighed examples the weighed ones are worth."""
    mean: float
    """Of all weights; one, up to rounding."""
    smallest: float
    largest: float
    noise_rate: float | None
    """Estimated share of wrong labels at the last judgement; None before the first."""
    trust: float | None
    """0 to 1: whether the model knows enough to judge labels."""
    caution: float | None
    """1 where there certainly are wrong labels, near 0 where there may be none: probabilities are lowered by it."""
    newly_down: int
    """Examples that the last judgement weighed down and the one before did not."""
    back: int
    """Examples that the one before had weighed down and the last did not."""
    moved: float
    """Mean change of a weight at the last judgement."""
    classes: tuple[ClassBalance, ...]
    seconds: float
    """Spent on all judgements."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        if not self.judgements:
            return f"Curriculum: warming up, all {self.examples} weights are one"
        lines = [
            f"Curriculum after {self.epochs:.1f} epochs and {self.judgements} judgements ({self.seconds:.1f} s):"
            f" {self.weighed_down} of {self.examples} examples weigh less than {DOWN}"
            f" ({self.newly_down} newly, {self.back} came back)",
            f"  estimated wrong labels {100 * (self.noise_rate or 0):.1f}%,"
            f" effective sample size {self.effective_size:.0f},"
            f" weights {self.smallest:.2f} to {self.largest:.2f}, mean {self.mean:.4f}",
            "  class  examples  share before  share after  weighed down",
        ]
        lines += [
            f"  {row.label:>5}  {row.examples:>8}  {100 * row.before:>11.2f}%  {100 * row.after:>10.2f}%"
            f"  {row.weighed_down:>12}"
            for row in self.shown()
        ]
        if len(self.classes) > MOST_ROWS:
            lines.append(f"  the {MOST_ROWS} of {len(self.classes)} classes whose share changed most")
        return "\n".join(lines)

    def shown(self) -> Sequence[ClassBalance]:
        """All classes, or of very many those whose share changed most."""
        if len(self.classes) <= MOST_ROWS:
            return self.classes
        return sorted(self.classes, key=lambda row: -abs(row.after - row.before))[:MOST_ROWS]


def summarise(
    weights: Array, labels: Labels, classes: int, history: Sequence[Mapping[str, Any]], epochs: float
) -> CurriculumReport:
    """The report about weights [n] and labels [n], −1 for examples that were never seen, which are left out."""
    seen = labels >= 0
    weights, labels = weights[seen], labels[seen]
    count = len(weights)
    total = float(weights.sum())
    sizes, after, down = (
        np.bincount(labels, weights=values, minlength=classes) for values in (None, weights, weights < DOWN)
    )
    last = history[-1] if history else {}
    return CurriculumReport(
        epochs=epochs,
        judgements=len(history),
        examples=count,
        weighed_down=int((weights < DOWN).sum()),
        effective_size=total**2 / float((weights**2).sum()) if count else 0.0,
        mean=total / count if count else 1.0,
        smallest=float(weights.min(initial=1.0)),
        largest=float(weights.max(initial=1.0)),
        noise_rate=last.get("noise_rate"),
        trust=last.get("trust"),
        caution=last.get("caution"),
        newly_down=last.get("newly_down", 0),
        back=last.get("back", 0),
        moved=last.get("moved", 0.0),
        classes=tuple(
            ClassBalance(
                label, int(sizes[label]), sizes[label] / max(count, 1), float(after[label]) / (total or 1), int(n)
            )
            for label, n in enumerate(down)
        ),
        seconds=float(sum(entry["seconds"] for entry in history)),
    )


def changes(before: Array, after: Array) -> dict[str, Any]:
    """What a judgement changed."""
    was, is_now = before < DOWN, after < DOWN
    return {
        "weighed_down": int(is_now.sum()),
        "newly_down": int((is_now & ~was).sum()),
        "back": int((was & ~is_now).sum()),
        "moved": float(np.abs(after - before).mean()),
    }
