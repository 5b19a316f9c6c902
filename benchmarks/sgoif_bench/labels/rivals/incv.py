"""INCV: iterative noisy cross-validation. Keep a label if a network that never saw the example predicts it.

Chen, Liao, Chen, Zhang: Understanding and Utilizing Deep Neural Networks Trained with Noisy Labels. ICML 2019.

S holds the selected examples (at first none), C the candidates (at first all). Each round cuts C at random into two
halves; for each half H, a fresh network trains on S and the other half, and then looks at H alone:

    selected  S_H = {i in H : predicted label = given label}
    removed   R_H = the r |S_H| examples of H with the largest loss, if not selected
    S ← S ∪ S_H,    C ← C ∖ (S_H ∪ R_H)        after both halves

The first half of the first round gives the noise rate ε. For a share a of predictions that equal the given label, and
a network that predicts by the distribution it was trained on,

    a = (1 − ε)² + ε² / (K − 1)      and the removal ratio is  r = min(ε / (1 − ε), 2)

As theirs, a network of an early round is the one of the epoch with the best held-out agreement: of all four rounds
where ε ≤ 0.3, of two where ε ≤ 0.6, else of the first; in later rounds it is the last epoch's.

After four rounds (the authors' number) Co-teaching, with its own T_k as the authors have it, trains two networks on S,
whose noise rate is ε² / (ε² + (K − 1)(1 − ε)²), joined after the first 20% of the epochs by the remaining C: to each
batch of S comes a batch of C in proportion to their sizes, at most half as large, and no more examples are kept than
before.

The authors have other rules where wrong labels are known to depend on the class: nothing is removed, only the first
round takes its best epoch, the noise rate of S is ε² / (ε² + (1 − ε)²), and C joins after 40% of the epochs (as it
does where ε > 0.6). `problem.known` tells which; without it the rules for symmetric noise hold.

Difference from the authors: all networks train for the recipe's epochs, where they give the cross-validation a quarter.

Score. Suspicion is c + ℓ / (1 + ℓ). c counts the rounds in which the example was rejected; a removed one counts as
rejected in the rounds that it can no longer take part in. ℓ orders examples with equal c: the mean of the held-out
losses in the rounds that judged it and of its loss under the final pair. Flagged is what was never selected. Cost: all
examples seen in training, by fold networks and the pair, over those of one plain training (about 8 at 20% noise).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif_bench.batches import Batches
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem, Rows, Scores
from sgoif_bench.labels.rivals.common import example_losses, label_losses, numpy_stream
from sgoif_bench.labels.rivals.coteaching import Lessons, Pair, kept, remember_share, teach

ROUNDS = 4
MAX_REMOVAL_RATIO = 2.0
WARM_UP_SHARE, LONG_WARM_UP_SHARE = 40 / 200, 80 / 200
MUCH_NOISE = 0.6
JOINED_LIMIT = 0.5
"""Candidates that join a batch, at most this share of its size."""
_HALVES_STREAM = 301
_FIRST_FOLD, _PAIR, _CANDIDATES = 10, (0, 1), 2


def noise_rate(agreement: float, classes: int) -> float:
    """The smaller ε with (1 − ε)² + ε² / (K − 1) = a; (K − 1) / K where agreement is below chance."""
    ceiling = (classes - 1) / classes
    return ceiling * (1 - math.sqrt(max(0.0, 1 - (1 - agreement) / ceiling)))


def selected_noise_rate(rate: float, classes: int, flips: bool = False) -> float:
    """Noise rate among the selected: wrong label and wrong prediction agree, over all agreements."""
    others = 1 if flips else classes - 1
    return rate**2 / (rate**2 + others * (1 - rate) ** 2)


def best_epoch_rounds(rate: float, flips: bool) -> int:
    """How many rounds, from the first, take the epoch with the best held-out agreement."""
    if flips or rate > MUCH_NOISE:
        return 1
    return 2 if rate > 0.3 else ROUNDS


def knows_flips(problem: Problem) -> bool:
    """Whether wrong labels are known to depend on the class."""
    return problem.known is not None and problem.known.flips


def warm_up_share(rate: float, flips: bool) -> float:
    """Share of the final training before the remaining candidates join."""
    return LONG_WARM_UP_SHARE if flips or rate > MUCH_NOISE else WARM_UP_SHARE


def removal_ratio(rate: float) -> float:
    """r, removed examples per selected one."""
    return min(rate / (1 - rate), MAX_REMOVAL_RATIO)


@dataclass(frozen=True)
class Verdict:
    """What a fold network says of the half that it has not seen."""

    rows: Rows
    agrees: NDArray[np.bool_]
    """Whether the predicted label is the given one, for each row: then it is selected."""
    losses: Scores

    def removed(self, ratio: float) -> NDArray[np.bool_]:
        """The `ratio` times as many as selected that have the largest losses, less those selected."""
        count = min(math.floor(ratio * self.agrees.sum()), len(self.rows))
        largest = np.zeros(len(self.rows), dtype=np.bool_)
        largest[np.argsort(-self.losses, kind="stable")[:count]] = True
        return largest & ~self.agrees


@dataclass
class Selection:
    """Where every example stands."""

    size: int
    selected: NDArray[np.bool_] = field(init=False)
    candidate: NDArray[np.bool_] = field(init=False)
    rejections: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.selected = np.zeros(self.size, dtype=np.bool_)
        self.candidate = np.ones(self.size, dtype=np.bool_)
        self.rejections = np.zeros(self.size, dtype=np.int64)
        self._losses = np.zeros(self.size)
        self._looks = np.zeros(self.size)

    def take(self, verdict: Verdict, ratio: float, rounds_left: int) -> None:
        """Move the examples of one half; `rounds_left` is how many rounds come after this one."""
        rows, removed = verdict.rows, verdict.removed(ratio)
        self._losses[rows] += verdict.losses
        self._looks[rows] += 1
        self.selected[rows[verdict.agrees]] = True
        self.candidate[rows[verdict.agrees | removed]] = False
        self.rejections[rows[~verdict.agrees]] += 1
        self.rejections[rows[removed]] += rounds_left

    def suspicion(self, final_losses: Scores) -> Scores:
        """c + ℓ / (1 + ℓ), the final losses being one more look."""
        loss = (self._losses + final_losses) / (self._looks + 1)
        score: Scores = self.rejections + loss / (1 + loss)
        return score


def judge(problem: Problem, training: Rows, half: Rows, number: int, tell: Say, best_epoch: bool = True) -> Verdict:
    """Train a fresh network on some rows and let it look at others, at its best epoch by them or at its last."""
    epochs, model = problem.recipe.epochs, problem.new_model(number)
    verdict: Verdict | None = None

    def on_epoch(epoch: int) -> None:
        nonlocal verdict
        tell(f"incv: epoch {epoch} of {epochs}")
        if best_epoch or epoch == epochs:
            found = look(problem, model, half)
            if verdict is None or found.agrees.sum() > verdict.agrees.sum():
                verdict = found

    problem.fit(model, problem.batches(training, number=number), on_epoch=on_epoch)
    assert verdict is not None
    return verdict


def look(problem: Problem, model: nn.Module, half: Rows) -> Verdict:
    """What a network says of rows that it has not seen."""
    logits = problem.predict(model, half)
    agrees: NDArray[np.bool_] = logits.argmax(dim=1).cpu().numpy() == problem.labels[half]
    return Verdict(half, agrees, label_losses(problem, logits, half).double().cpu().numpy())


def cross_validate(problem: Problem, tell: Say, rounds: int = ROUNDS) -> tuple[Selection, float, float]:
    """The rounds of selection; returns also the noise rate ε and the cost in trainings."""
    stream, selection = numpy_stream(problem, _HALVES_STREAM), Selection(len(problem))
    rate: float | None = None
    flips, seen = knows_flips(problem), 0
    for turn in range(rounds):
        candidates = stream.permutation(np.flatnonzero(selection.candidate))
        if len(candidates) < 2:
            break
        already = np.flatnonzero(selection.selected)
        first, second = np.array_split(candidates, 2)
        verdicts = []
        for fold, (trained, half) in enumerate(((first, second), (second, first))):
            training = np.concatenate([already, trained])
            tell(f"incv: round {turn + 1} of {rounds}, half {fold + 1}: training on {len(training)} examples")
            best = rate is None or turn < best_epoch_rounds(rate, flips)
            verdicts.append(judge(problem, training, half, _FIRST_FOLD + 2 * turn + fold, tell, best))
            seen += len(training)
        if rate is None:
            rate = noise_rate(float(verdicts[0].agrees.mean()), problem.classes)
        for verdict in verdicts:
            selection.take(verdict, 0.0 if flips else removal_ratio(rate), rounds - 1 - turn)
        tell(f"incv: round {turn + 1} of {rounds}: {selection.selected.sum()} selected, noise rate {rate:.3f}")
    return selection, 0.0 if rate is None else rate, seen / len(problem)


def endless(batches: Batches) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Epoch after epoch of the same examples."""
    while True:
        yield from batches


def train_pair(problem: Problem, selection: Selection, rate: float, tell: Say) -> tuple[list[nn.Module], float]:
    """Co-teaching on the selected examples, joined by candidates after warm-up; returns also the cost in trainings."""
    epochs, flips = problem.recipe.epochs, knows_flips(problem)
    chosen, candidates = np.flatnonzero(selection.selected), np.flatnonzero(selection.candidate)
    batches = problem.batches(chosen)
    size = min(len(candidates) * batches.batch_size // len(chosen), int(JOINED_LIMIT * batches.batch_size))
    extra: Iterator[tuple[Tensor, Tensor, Tensor]] | None = None
    if size > 0:
        others = problem.batches(candidates, number=_CANDIDATES)
        others.batch_size = min(size, len(candidates))
        extra = endless(others)

    def lessons(epoch: int) -> Lessons:
        share = remember_share(epoch - 1, epochs, selected_noise_rate(rate, problem.classes, flips))
        for x, y, index in batches:
            keep = kept(share, len(y))
            if extra is None or epoch <= warm_up_share(rate, flips) * epochs:
                yield x, y, index, keep
            else:
                more_x, more_y, more_index = next(extra)
                yield torch.cat([x, more_x]), torch.cat([y, more_y]), torch.cat([index, more_index]), keep

    pair = Pair(problem, epochs * len(batches), _PAIR)
    seen = teach(pair, epochs, lessons, lambda *_: None, lambda line: tell(f"incv, final pair: {line}"))
    return pair.models, 2 * seen / (epochs * len(problem))


def incv(problem: Problem, tell: Say, rounds: int = ROUNDS) -> Outcome:
    """Select by cross-validation, then train a pair on the selection; suspicion is rejections, then loss."""
    selection, rate, fold_cost = cross_validate(problem, tell, rounds)
    if not selection.selected.any():
        tell("incv: no label was confirmed, so there is nothing to train the final pair on")
        return Outcome(selection.suspicion(np.zeros(len(problem))), ~selection.selected, fold_cost)
    models, pair_cost = train_pair(problem, selection, rate, tell)
    final = torch.stack([example_losses(problem, model) for model in models]).mean(dim=0).double().cpu().numpy()
    return Outcome(
        selection.suspicion(final),
        flagged=~selection.selected,
        trainings=fold_cost + pair_cost,
        details={"rounds": rounds, "noise_rate": rate, "selected": int(selection.selected.sum())},
    )
