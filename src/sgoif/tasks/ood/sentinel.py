"""Whether an input belongs: the energy of the answer over the strangeness of what led to it.

    s(x) = ½ ln κ(x) + ½ ln ν(x) − g ln E(x),      E(x) = logsumexp_k (z_k − z̄),      κ(x) = mean over layers of r_l(x)

z are the logits, z̄ their mean (softmax does not see it, and E ≥ ln C without it). r_l is how far the activations of a
layer lie from the reference in units of their curvature, about 1 for inputs that belong (`moments`), and ν how far the
directions of all activations together lie from those of the nearest example that belongs (`neighbours`). The layers are
the pooled stages of the network, each with one centre, and the input of its head with one centre for every class.
g is the gate: 1 where the labels are right, less where the network outvotes them (`reference`). κ sees what leaves the
space that the reference fills, ν what lies in its gaps. docs/sentinel.md says what was chosen looking at outlier sets.
"""

import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from sgoif.core.serialization import load_state, save_state
from sgoif.errors import LayerError, SettingError, SgoifError, StateError
from sgoif.monitor import InfluenceMonitor
from sgoif.tasks.argument_checks import as_numbers, check_classes, check_model
from sgoif.tasks.ood.conformal import p_values, threshold
from sgoif.tasks.ood.moments import LayerMoments
from sgoif.tasks.ood.neighbours import Neighbours
from sgoif.tasks.ood.network import Network, Seen
from sgoif.tasks.ood.ood_score import OodScore
from sgoif.tasks.ood.reference import CalibrationSet, OneInMany, Reference, activations_of
from sgoif.tasks.ood.score_graphs import GraphedScore
from sgoif.tasks.ood.stream import ShiftWatch
from sgoif.tracking.evaluation import evaluation

HELD_BACK = 5
"""One example in so many, at random, is kept for the calibration where none is given."""
LEAST_CALIBRATION = 20
FOLDS = 5
BATCH = 256
CHANGED_HEAD = 0.5
"""A last layer that is so far, in units of its length, from what it was is no longer that of the same training."""
VERSION = 3


class Sentinel:
    """Scores inputs of one network by how little they resemble its reference; higher = stranger.

    Made by `fit` from a model and data, by `from_monitor` from a finished or running monitor, or by `load`.

    Example:
        ```python
        from sgoif.tasks import Sentinel

        sentinel = Sentinel.fit(model, train_set, calibration=holdout_set)
        unlike = sentinel.p_value(x) < 0.01                 # at most one input in a hundred that belongs
        sentinel.save("sentinel.npz")                       # later: Sentinel.load("sentinel.npz", model)
        ```
    """

    def __init__(
        self,
        network: Network,
        layers: list[LayerMoments],
        neighbours: Neighbours,
        calibration: Tensor,
        shape: tuple[int, ...],
        trust: float = 1.0,
    ) -> None:
        self.network = network
        self.layers = layers
        self.neighbours = neighbours
        self.calibration = calibration.sort().values
        """Scores of inputs that belong, smallest first."""
        self.shape = shape
        """Of one input."""
        self.trust = trust
        """g: how far the network's answers count."""
        self._score = OodScore(layers, neighbours, trust)
        self._graphed = GraphedScore(self._score)

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        loader: Iterable[Any],
        *,
        calibration: Iterable[Any] | None = None,
        gate: bool = True,
        stages: list[str] | None = None,
    ) -> Self:
        """Learn from inputs that belong; the model is left in evaluation mode.

        Args:
            model: a trained classifier.
            loader: a data set, or batches x, (x, y) or (x, y, index), as a loader yields them. Without labels the
                network's answers name the classes.
            calibration: the same, of inputs that the model was not trained on: p-values and alarms are only as honest
                as these are. Without them, one example in five of `loader` is kept back.
            gate: whether labels that the network outvotes take weight from its answers.
            stages: names of the modules whose outputs are compared, where they are not to be found automatically.

        Returns:
            A sentinel, ready to score.
        """
        check_model(model, "a sentinel")
        inputs = _inputs(loader, model)
        first = next(inputs, None)
        if first is None:
            raise SettingError("the loader is empty: a sentinel needs examples of what belongs")
        network = Network(model, first[0][:1], stages)
        held_out = None if calibration is None else (network.see(x) for x, _ in _inputs(calibration, model, first[0]))
        views = ((network.see(x), y) for x, y in itertools.chain([first], inputs))
        return cls.fit_outputs(network, views, held_out, gate=gate)

    @classmethod
    def fit_outputs(
        cls,
        network: Network,
        views: Iterable[tuple[Seen, Tensor | None]],
        calibration: Iterable[Seen] | None = None,
        *,
        gate: bool = True,
    ) -> Self:
        """The same from batches that the network has seen, with their labels."""
        reference, kept, held_back = Reference(network, gate), CalibrationSet(), OneInMany(HELD_BACK)
        shape: tuple[int, ...] = ()
        for seen, labels in views:
            shape = tuple(seen.images.shape[1:])
            back = held_back.chosen(len(seen)) & (calibration is None)
            reference.add(seen, labels, ~back)
            kept.add(seen, back)
        for seen in calibration or ():
            kept.add(seen, torch.ones(len(seen), dtype=torch.bool))
        return cls._calibrated(reference, kept, shape)

    @classmethod
    def from_monitor(cls, monitor: InfluenceMonitor, *, gate: bool = True, weighted: bool = False) -> Self:
        """Learn from the anchors of a monitor.

        The anchors were held out from training, so they serve as the calibration too: each is scored by a sentinel that
        was made without its fifth of them.

        Args:
            monitor: the monitor of a finished or running training.
            gate: as for `fit`.
            weighted: whether anchors count by the monitor's confidence in them; otherwise all count alike.
        """
        check_classes(monitor, "a sentinel")
        bank = monitor.anchors
        counts = torch.ones_like(bank.confidence)
        if weighted and float(bank.confidence.sum()) > 0:
            counts = bank.confidence.detach().clone()
        with evaluation(monitor.model):
            first, _ = bank.batch(bank.members[:1])
            if not isinstance(first, Tensor):
                raise LayerError("a sentinel watches models that take one tensor; these anchors have several inputs")
            network = Network(monitor.model, first)
            whole, left = Reference(network, gate), [CalibrationSet() for _ in range(FOLDS)]
            others = [Reference(network, gate) for _ in range(FOLDS)]
            fold_of = torch.from_numpy(np.random.default_rng(0).permutation(len(bank)) % FOLDS)
            for rows in torch.arange(len(bank)).split(monitor.gradients.batch_size):
                x, y = bank.batch(bank.members[rows])
                seen, weights = network.see(x), counts[rows.to(counts.device)]
                whole.add(seen, y, weights=weights)
                for fold, (part, kept) in enumerate(zip(others, left, strict=True)):
                    part.add(seen, y, fold_of[rows] != fold, weights)
                    kept.add(seen, fold_of[rows] == fold)
        shape = tuple(first.shape[1:])
        _check_calibration(len(bank))
        without = [cls._calibrated(part, kept, shape, least=1) for part, kept in zip(others, left, strict=True)]
        # r̄ of an anchor that took part in C is too small, and every other input would look strange beside it.
        by_layer = zip(*(each.layers for each in without), strict=True)
        scales = [sum(layer.scale for layer in same) / FOLDS for same in by_layer]
        layers = [replace(sums.layer(), scale=scale) for sums, scale in zip(whole.sums, scales, strict=True)]
        calibration = torch.cat([each.calibration for each in without])
        return cls(network, layers, whole.sample.neighbours(), calibration, shape, whole.trust)

    @classmethod
    def _calibrated(
        cls, reference: Reference, kept: CalibrationSet, shape: tuple[int, ...], least: int = LEAST_CALIBRATION
    ) -> Self:
        _check_calibration(len(kept), least)
        seen = kept.seen()
        scaled = [sums.layer().scaled(a) for sums, a in zip(reference.sums, activations_of(seen), strict=True)]
        sentinel = cls(reference.network, scaled, reference.sample.neighbours(), torch.zeros(1), shape, reference.trust)
        scores = sentinel.strangeness(seen)
        if not bool(torch.isfinite(scores).all()):
            raise SettingError("the calibration holds inputs for which the network's answer is not a finite number")
        sentinel.calibration = scores.sort().values
        return sentinel

    @torch.no_grad()
    def strangeness(self, seen: Seen) -> Tensor:
        """s of a batch that the network has seen, [n]; infinite where the input or what came of it is not a number."""
        return self._graphed(seen.images, (*seen.stages, seen.features, seen.logits))

    def score(self, x: Tensor) -> Tensor:
        """How strange each input is, [n]; one that holds an infinite value or none at all is infinitely strange."""
        _check(x, self.shape)
        if len(x) == 0:
            return torch.empty(0, device=x.device)
        self._check_place()
        with evaluation(self.network.model) if self.network.is_training else nullcontext():
            return self.strangeness(self.network.see(_as_model_input(x, self.network.entry)))

    def _check_place(self) -> None:
        there, here = self.network.head.weight.device, self._score.device
        if there != here:
            raise StateError(
                f"the model is on {there} and its sentinel on {here}: move the model back, or save the sentinel and"
                " load it where the model is now"
            )

    def p_value(self, x: Tensor) -> Tensor:
        """How often an input that belongs would look at least as strange, [n]."""
        return p_values(self.score(x), self.calibration)

    def threshold(self, false_alarms: float = 0.05) -> float:
        """The score that at most this share of inputs that belong exceed."""
        return threshold(self.calibration, false_alarms)

    def watch(self, false_alarms: float = 0.01, seed: int = 0) -> ShiftWatch:
        """Follow a stream of inputs; see `ShiftWatch`."""
        return ShiftWatch(self, false_alarms=false_alarms, seed=seed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the model; atomically and without pickle."""
        state: dict[str, Any] = {
            "version": VERSION,
            "kind": "sentinel",
            "head": self.network.head_name,
            "classes": self.network.classes,
            "head_weight": self.network.head.weight.detach().float().cpu(),
            "stages": list(self.network.stages),
            "shape": list(self.shape),
            "trust": self.trust,
            "scales": [layer.scale for layer in self.layers],
            "calibration": self.calibration,
            "neighbours": self.neighbours.rows.half(),
        }
        for number, layer in enumerate(self.layers):
            state |= {f"centres{number}": layer.centres, f"root{number}": layer.root}
        save_state(path, state)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module) -> Self:
        """Read what `save` wrote, for the model that it was made with."""
        check_model(model, "a sentinel")
        state = load_state(path)
        if state.get("kind") != "sentinel" or state.get("version") != VERSION:
            raise StateError(f"{os.fspath(path)} is not a sentinel of this version of sgoif; fit it again")
        try:
            return cls._from_state(state, model, os.fspath(path))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            if isinstance(error, SgoifError):
                raise
            raise StateError(f"{os.fspath(path)} is damaged ({error!r}); fit it again") from error

    @classmethod
    def _from_state(cls, state: dict[str, Any], model: nn.Module, path: str) -> Self:
        """A sentinel from its parts; what does not go together raises."""
        try:
            network = Network(model, None, state["stages"], state["head"])
        except LayerError as error:
            raise StateError(f"the sentinel belongs to another model: {error}") from error
        if state["classes"] != network.classes:
            raise StateError(
                f"the sentinel belongs to another model with {state['classes']} outputs, not {network.classes}"
            )
        device = network.head.weight.device
        layers = [
            LayerMoments(state[f"centres{number}"].to(device), state[f"root{number}"].to(device), scale)
            for number, scale in enumerate(state["scales"])
        ]
        if layers[-1].root.shape[0] != network.head.in_features:
            raise StateError(
                f"the sentinel belongs to another model: its head takes {layers[-1].root.shape[0]} features, this one's"
                f" {network.head.in_features}"
            )
        _check_trained(state["head_weight"], network.head.weight)
        sizes = tuple(layer.root.shape[0] for layer in layers)
        neighbours = Neighbours(state["neighbours"].to(device).float(), sizes)
        if neighbours.rows.dim() != 2 or neighbours.rows.shape[1] != sum(sizes) or not len(neighbours.rows):
            raise StateError(f"{path} is damaged: its examples do not go with its layers; fit it again")
        calibration = state["calibration"].to(device)
        if calibration.dim() != 1 or not len(calibration) or not bool(torch.isfinite(calibration).all()):
            raise StateError(f"{path} is damaged: its calibration is no list of scores; fit it again")
        if any(tuple(layer.root.shape) != (layer.centres.shape[1],) * 2 for layer in layers):
            raise StateError(f"{path} is damaged: the parts of a layer do not go together; fit it again")
        trust = float(state["trust"])
        if not 0 < trust <= 1:
            raise StateError(f"{path} is damaged: its trust {trust} is not a share; fit it again")
        return cls(network, layers, neighbours, calibration, tuple(state["shape"]), trust)


def _check_calibration(count: int, least: int = LEAST_CALIBRATION) -> None:
    if count < least:
        raise SettingError(
            f"{count} examples are too few to calibrate with; {least} are the least, 1,000 or more are better."
            " Give more data, or held-out batches as calibration=..."
        )


def _inputs(
    loader: Iterable[Any], model: nn.Module, like: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Batches as the model takes them, all of one shape: that of `like`, or of the first."""
    shape = None if like is None else tuple(like.shape[1:])
    for batch in _batches(loader):
        x, y, *_ = (*batch, None) if isinstance(batch, tuple | list) and batch else (batch, None)
        _check(x, shape)
        shape = tuple(x.shape[1:])
        if len(x):
            given = None if y is None else as_numbers(y, "labels must be class numbers")
            yield _as_model_input(x, next(model.parameters(), None)), given


def _batches(data: Any) -> Iterable[Any]:
    """What batches come from: a data set is cut into some, anything else yields them."""
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return DataLoader(data, batch_size=BATCH, generator=torch.Generator())  # a seed of its own, not the user's
    if isinstance(data, Tensor) or not isinstance(data, Iterable):
        kind = "a tensor; for a single batch, give a list with it" if isinstance(data, Tensor) else type(data).__name__
        raise SettingError(f"a sentinel learns from a data set or a loader of batches; got {kind}")
    return data


def _check_trained(then: Tensor, now: Tensor) -> None:
    """Raise where the last layer is another one than at the fit, as before its weights are loaded."""
    if then.shape != now.shape or float((now.detach().float().cpu() - then).norm()) > CHANGED_HEAD * float(then.norm()):
        raise StateError(
            "the weights of the model's last layer are not those that the sentinel was made with: load the trained"
            " weights first, or fit it again"
        )


def _as_model_input(x: Tensor, parameter: Tensor | None) -> Tensor:
    """Inputs where the model is and in its precision."""
    return x if parameter is None else x.to(parameter)


def _check(x: Any, shape: tuple[int, ...] | None) -> None:
    if not isinstance(x, Tensor):
        raise SettingError(f"inputs must be a tensor, and a batch must be or start with one; found {type(x).__name__}")
    if not x.is_floating_point():
        raise SettingError(f"inputs must be what the network takes, normalised floats, not {x.dtype}")
    if shape is not None and tuple(x.shape[1:]) != shape:
        raise SettingError(
            f"inputs of shape {tuple(x.shape[1:])} do not go with a sentinel for {shape}: bring them to that size and"
            " number of channels, normalised as for the network itself"
        )
