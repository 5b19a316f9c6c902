"""The libraries beside us: a missing one is named; those that are installed give scores of the right sign."""

import numpy as np
import pytest
import torch

from sgoif.bench.fidelity.answer import Relabelled, Trained
from sgoif.bench.fidelity.base import train_once
from sgoif.bench.fidelity.peers.captum import NegativeMargin
from sgoif.bench.fidelity.peers.common import batches, ended, examples, need
from sgoif.bench.fidelity.recipes import training_for
from sgoif.bench.fidelity.registry import METHODS
from sgoif.bench.fidelity.study import make_study
from sgoif.bench.labels.datasets import load
from sgoif.errors import MissingExtraError

pytest.importorskip("sklearn")
MODULES = {
    "ekfac": "kronfluence",
    "ekfac-undamped": "kronfluence",
    "kfac": "kronfluence",
    "diagonal": "kronfluence",
    "trak-1": "trak",
    "trak-1-ridge": "trak",
    "trak-5": "trak",
    "tracin": "captum",
    "tracin-fast": "captum",
    "if-cg": "dattri",
    "lissa": "dattri",
    "datainf": "dattri",
    "ggn-cg": "curvlinops",
}


@pytest.fixture(scope="module")
def trained() -> Trained:
    training = training_for("digits", limit=150, epochs=6, batch_size=16)
    study = make_study(
        load("digits", limit=150), load("digits", train=False), training, 0.0, 8, torch.device("cpu"), seed=0
    )
    given = study.problem.labels[:12]
    # The first keeps its label, which must then change nothing.
    asked = Relabelled(np.arange(12), np.where(np.arange(12) == 0, given, (given + 1) % 10))
    return train_once(study, relabelled=asked)


def test_a_library_that_is_not_there_is_named_with_the_way_to_get_it():
    with pytest.raises(MissingExtraError, match=r"no_such_thing.*sgoif\[peers\]"):
        need("no_such_thing.module", "no-such-thing")


def test_every_peer_has_a_test():
    assert {name for name, entry in METHODS.items() if entry.kind == "peer"} == set(MODULES)


def test_libraries_get_a_copy_and_every_example_in_order(trained):
    model = ended(trained)
    with torch.no_grad():
        next(model.parameters()).zero_()
    assert bool(next(trained.model.parameters()).any())
    parts = batches(examples(trained.study), 64, torch.device("cpu"))
    assert [len(x) for x, _ in parts] == [64, 64, 22]
    assert torch.cat([y for _, y in parts]).tolist() == trained.study.problem.labels.tolist()


def test_the_loss_of_queries_is_a_sum_of_negative_margins():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    assert float(NegativeMargin()(logits, torch.tensor([0, 0]))) == pytest.approx(-2.0 + 1.0)


@pytest.mark.parametrize("name", MODULES)
def test_scores_say_that_examples_of_the_own_class_help(trained, name):
    pytest.importorskip(MODULES[name], reason=f"{MODULES[name]} is not installed: pip install 'sgoif[peers]'")
    answer = METHODS[name].run(trained)
    study = trained.study
    assert answer.scores.shape == (8, 150)
    same = study.queries.labels[:, None] == study.problem.labels[None]
    assert np.where(same, answer.scores, 0).sum() / same.sum() > np.where(same, 0, answer.scores).sum() / (~same).sum()
    assert answer.seconds > 0
    asked = trained.relabelled
    if MODULES[name] == "trak":
        assert answer.relabelled is None
        return
    assert answer.relabelled.shape == (8, 12)
    scale = np.abs(answer.relabelled).max()
    np.testing.assert_allclose(answer.relabelled[:, 0], 0, atol=1e-3 * scale)
    gains = study.queries.labels[:, None] == asked.labels[None, 1:]
    loses = study.queries.labels[:, None] == study.problem.labels[None, asked.rows[1:]]
    change = answer.relabelled[:, 1:]
    assert change[gains].mean() > 0 > change[loses].mean()
