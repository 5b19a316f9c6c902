"""What an unlearner answers with: decisions, removals, checks. Each can be printed, and written down as JSON."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from sgoif.tasks.unlearning.influence import Effect
from sgoif.tasks.unlearning.priority import When
from sgoif.tasks.unlearning.removal import Certificate
from sgoif.tasks.unlearning.text import counted, few


@dataclass(frozen=True)
class Decision:
    """What a request would do, and whether the network has to be trained again now."""

    number: int
    """Of the request, from 1."""
    ids: tuple[str, ...]
    reason: str
    """As the request gave it."""
    when: When
    urgency: float
    """Largest of measurement / limit; 1 or more means now."""
    reasons: tuple[str, ...]
    """Why, in words; the strongest first."""
    effect: Effect
    certificate: Certificate
    steps: int
    """Newton steps behind the certificate."""
    logits: float
    """No logit of a typical query is further than this from that of the retrained head."""

    @property
    def now(self) -> bool:
        """Whether the network should be trained again now."""
        return self.when == "now"

    def record(self) -> dict[str, Any]:
        """In terms of JSON."""
        return {**asdict(self), "certificate": self.certificate.record()}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        return cls(
            **{
                **record,
                "ids": tuple(record["ids"]),
                "reasons": tuple(record["reasons"]),
                "effect": Effect(**record["effect"]),
                "certificate": Certificate.from_record(record["certificate"]),
            }
        )

    def __str__(self) -> str:
        what = "retrain now" if self.now else "can wait"
        return (
            f"Request {self.number} ({counted(len(self.ids), 'example')}): {what}. {'; '.join(self.reasons)}."
            f" {describe_effect(self.effect)}"
        )


@dataclass
class Request:
    """A request, and how far it got."""

    number: int
    """From 1."""
    ids: tuple[str, ...]
    reason: str
    decision: Decision | None = None
    removed: bool = False
    """Whether its examples were taken out of the head."""

    def record(self) -> dict[str, Any]:
        """In terms of JSON."""
        return {**asdict(self), "decision": None if self.decision is None else self.decision.record()}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        decided = record["decision"]
        decision = None if decided is None else Decision.from_record(decided)
        return cls(**{**record, "ids": tuple(record["ids"]), "decision": decision})


@dataclass(frozen=True)
class Removal:
    """Examples that were taken out of the head."""

    requests: tuple[int, ...]
    ids: tuple[str, ...]
    certificate: Certificate
    effect: Effect
    steps: int
    moved: float
    """Distance between the head before and the head after."""
    logits: float
    """No logit of a typical query is further than this from that of the retrained head."""
    holds: bool
    """Whether that is within the limit."""
    head: str
    """Digest of the new head."""

    def record(self) -> dict[str, Any]:
        """In terms of JSON."""
        return {**asdict(self), "certificate": self.certificate.record()}

    def __str__(self) -> str:
        return (
            f"Removed {counted(len(self.ids), 'example')} ({few(self.ids)}) from the head in"
            f" {counted(self.steps, 'step')}. Certificate: the head is within {self.certificate.bound:.3g} of the one"
            f" trained without them, a typical logit within {self.logits:.2g}"
            f" ({'within' if self.holds else 'ABOVE'} the limit). {describe_effect(self.effect)}"
        )


@dataclass(frozen=True)
class Check:
    """The head beside one that was trained again, from zeros, without everything that was deleted."""

    distance: float
    """Between the two heads."""
    bound: float
    """What the certificate said about it."""
    holds: bool
    """Whether the distance is within the bound, up to how far training again went."""
    closed: float | None
    """At least this share of the distance to the retrained head was closed by the last removal; None before any."""
    largest_logit: float
    """Largest difference of a logit over the queries."""
    differing: int
    """Predictions that differ,"""
    queries: int
    """of so many."""
    loss_difference: float
    """Mean loss of this head minus that of the retrained one."""
    retrained_gradient: float
    """Gradient norm at which training again stopped."""
    seconds: float

    def record(self) -> dict[str, Any]:
        """In terms of JSON."""
        return asdict(self)

    def __str__(self) -> str:
        closed = "" if self.closed is None else f", at least {self.closed:.2%} of the way"
        return (
            f"Beside the retrained head: distance {self.distance:.3g} (certificate {self.bound:.3g},"
            f" {'kept' if self.holds else 'BROKEN'}){closed}; largest difference of a logit {self.largest_logit:.2g};"
            f" {self.differing} of {self.queries:,} predictions differ."
        )


def describe_effect(effect: Effect) -> str:
    """An effect in a sentence."""
    return (
        f"Mean loss {effect.loss:.4g}, change {effect.change:+.3g} (between {effect.low:+.3g} and {effect.high:+.3g});"
        f" {counted(effect.flips, 'prediction')} of {effect.queries:,} change{'s' if effect.flips == 1 else ''}."
    )
