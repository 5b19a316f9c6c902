"""Whether a stream of inputs has changed, with a bound on false alarms that holds at all times at once.

Every input gets a conformal p-value against the calibration *and* all inputs before it,

    p_t = (#{s_i > s_t} + U · #{s_i = s_t}) / (n + t),      U uniform on [0, 1],      i over calibration and 1 … t

which are independent and uniform as long as the stream is like the calibration, whatever the score. Against that, bets
are placed: a bet f with ∫ f = 1 multiplies its capital by f(p_t), so that the capital of a bettor who started at any
time is a martingale under "no change". The bets are

    f(p) = 1 − w + w · a · p^(a−1)        and the same of 1 − p,

for several shares w of strange inputs and several degrees a of strangeness, and each starts at every time k with a
share π_k ∝ 1 / (k ln² (k + 1)) of its wealth. All capital together starts at 1, so by Ville's inequality it ever
reaches 1/α with probability at most α: that is the alarm. A change late in the stream costs only the logarithm of its
time.
"""

import bisect
import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.argument_checks import check_share

SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""w: how many of the inputs are bet to be strange."""
DEGREES = (0.1, 0.3, 0.6)
"""a: how strange; the smaller, the closer p is bet to lie to 0."""
DRIVERS = 20
REMEMBERED = 2000
PRIOR_TOTAL = 3.388
"""Σ_k 1 / (k ln² (k + 1)) over all k ≥ 1, rounded up."""
SMALLEST = 1e-12


class InputScorer(Protocol):
    """What follows a stream asks of a `Sentinel`."""

    calibration: Tensor
    """Scores of inputs that belong."""

    def score(self, x: Tensor) -> Tensor:
        """One score for every input; higher = stranger."""


@dataclass(frozen=True)
class Alarm:
    """A stream has changed."""

    time: int
    """Number of inputs seen when the alarm was raised."""
    change: int
    """When the change most likely happened: inputs from this one on (counted from 0) are unlike those before."""
    drivers: tuple[Any, ...]
    """The inputs since then that count most against "no change", by position or by the names they came with."""
    evidence: float
    """Capital when the alarm was raised; 1/false_alarms at least."""
    towards: str
    """Which way the inputs moved: `stranger` or `more usual`."""


class ShiftWatch:
    """Follows a stream of inputs and raises an alarm when it changes; the alarm stays until `reset`.

    Args:
        sentinel: what scores the inputs; None where `update_scores` is given scores.
        calibration: scores of inputs that belong; those of the sentinel unless given.
        false_alarms: chance that a stream without a change ever raises an alarm.
        seed: of the draws that break ties.

    Example:
        ```python
        from sgoif.tasks import Sentinel, ShiftWatch

        watch = ShiftWatch(Sentinel.from_monitor(monitor), false_alarms=0.01)
        for batch in DataLoader(x, batch_size=16):
            if alarm := watch.update(batch):
                print("changed at input", alarm.change, "towards", alarm.towards)
                break
        ```
    """

    def __init__(
        self,
        sentinel: InputScorer | None,
        calibration: Tensor | None = None,
        *,
        false_alarms: float = 0.01,
        seed: int = 0,
    ) -> None:
        check_share(false_alarms, "false_alarms")
        if sentinel is None and calibration is None:
            raise SettingError("a watch needs a sentinel, or the scores of inputs that belong as calibration=...")
        self.sentinel = sentinel
        self.false_alarms = false_alarms
        scores = sentinel.calibration if calibration is None and sentinel is not None else calibration
        assert scores is not None
        self._first = sorted(scores.double().cpu().tolist())
        self._random = np.random.default_rng(seed)
        pairs = [(w, a) for w in SHARES for a in DEGREES]
        self._w = np.array([w for w, _ in pairs] * 2)
        self._a = np.array([a for _, a in pairs] * 2)
        self.reset()

    def reset(self) -> None:
        """Forget the stream; the calibration stays."""
        self._before = list(self._first)
        self.count = 0
        self.alarm: Alarm | None = None
        bettors = len(self._w)
        self._log_capital = np.full(bettors, -np.inf)
        """Of every bettor, over all starting times so far."""
        self._unspent = 1.0
        self._run = np.zeros(bettors)
        self._since = np.zeros(bettors, dtype=np.int64)
        """Start of the run of bets that would have won most."""
        self._recent: deque[tuple[int, Any, float]] = deque(maxlen=REMEMBERED)
        self.p_values: list[float] = []

    @property
    def capital(self) -> float:
        """All capital; its reciprocal bounds the chance of having got so far without a change."""
        return self._unspent + float(np.exp(self._log_capital).mean())

    def update(self, inputs: Tensor, names: list[Any] | None = None) -> Alarm | None:
        """Take more inputs, in the order they came.

        Args:
            inputs: a batch as the network takes it.
            names: what an alarm calls them; their positions in the stream unless given.

        Returns:
            The alarm, if there is one by now.
        """
        if self.sentinel is None:
            raise SettingError("this watch has no sentinel; give it scores with update_scores(...)")
        return self.update_scores(self.sentinel.score(inputs), names)

    def update_scores(self, scores: Tensor, names: list[Any] | None = None) -> Alarm | None:
        """The same for inputs that have been scored already."""
        if not isinstance(scores, Tensor) or scores.dim() != 1:
            found = f"a tensor of shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
            raise SettingError(f"scores must be a tensor with one number for every input; got {found}")
        if names is not None and len(names) != len(scores):
            raise SettingError(f"{len(names)} names do not go with {len(scores)} inputs")
        for row, score in enumerate(scores.double().cpu().tolist()):
            self._add_score(math.inf if math.isnan(score) else score, self.count if names is None else names[row])
        return self.alarm

    def _add_score(self, score: float, name: Any) -> None:
        p = self._p_value(score)
        self._recent.append((self.count, name, p))
        self.p_values.append(p)
        self.count += 1
        prior = 1 / (PRIOR_TOTAL * self.count * math.log(self.count + 1) ** 2)
        self._unspent = max(0.0, self._unspent - prior)
        gain = self._gains(p)
        self._log_capital = np.logaddexp(self._log_capital, math.log(prior)) + gain
        restart = self._run <= 0
        self._since = np.where(restart, self.count - 1, self._since)
        self._run = np.where(restart, 0.0, self._run) + gain
        if self.alarm is None and self.capital >= 1 / self.false_alarms:
            self.alarm = self._make_alarm()

    def _p_value(self, score: float) -> float:
        """p_t; the input itself is one of those it is compared with."""
        at = bisect.bisect_left(self._before, score)
        upto = bisect.bisect_right(self._before, score)
        self._before.insert(upto, score)
        larger, equal = len(self._before) - 1 - upto, upto - at + 1
        return float((larger + self._random.uniform() * equal) / len(self._before))

    def _gains(self, p: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        """ln f(p) of every bettor: the first half bets on small p, the second on large."""
        half = len(self._w) // 2
        side = np.where(np.arange(len(self._w)) < half, p, 1 - p).clip(SMALLEST, 1.0)
        gains: np.ndarray[Any, np.dtype[np.float64]] = np.log1p(self._w * (self._a * side ** (self._a - 1) - 1))
        return gains

    def _make_alarm(self) -> Alarm:
        best = int(np.argmax(self._run))
        change = int(self._since[best])
        strange = best < len(self._w) // 2
        since = [(p if strange else 1 - p, name) for position, name, p in self._recent if position >= change]
        since.sort(key=lambda pair: pair[0])
        return Alarm(
            time=self.count,
            change=change,
            drivers=tuple(name for _, name in since[:DRIVERS]),
            evidence=self.capital,
            towards="stranger" if strange else "more usual",
        )
