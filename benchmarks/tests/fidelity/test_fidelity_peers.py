"""The libraries beside us: a missing one is named; those that are installed give scores of the right sign."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sgoif.errors import MissingExtraError, SettingError
from sgoif_bench.fidelity.answer import Relabelled, Trained
from sgoif_bench.fidelity.base import train_once
from sgoif_bench.fidelity.peers import curvlinops, dattri
from sgoif_bench.fidelity.peers.captum import NegativeMargin
from sgoif_bench.fidelity.peers.common import batches, ended, examples, need
from sgoif_bench.fidelity.peers.dattri import solve_once
from sgoif_bench.fidelity.peers.head import HeadStudy, head_of
from sgoif_bench.fidelity.recipes import training_for
from sgoif_bench.fidelity.registry import METHODS, steps_of
from sgoif_bench.fidelity.study import make_study
from sgoif_bench.labels.datasets import load

pytest.importorskip("sklearn")
MODULES = {
    "ekfac": "kronfluence",
    "ekfac-undamped": "kronfluence",
    "kfac": "kronfluence",
    "diagonal": "kronfluence",
    **dict.fromkeys(steps_of("trak-1"), "trak"),
    "trak-5": "trak",
    "tracin": "captum",
    "tracin-fast": "captum",
    **dict.fromkeys(steps_of("if-cg"), "dattri"),
    **dict.fromkeys(steps_of("lissa"), "dattri"),
    **dict.fromkeys(steps_of("datainf"), "dattri"),
    **dict.fromkeys(steps_of("ggn-cg"), "curvlinops"),
    "ekfac-head": "kronfluence",
    "if-cg-head": "dattri",
    "lissa-head": "dattri",
    "datainf-head": "dattri",
    "ggn-cg-head": "curvlinops",
}
UNSWEPT = {name for name, entry in METHODS.items() if entry.sweep in ("", name)}
"""One method of every sweep: the others differ from it in a number, which is tested by itself."""


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
    with pytest.raises(MissingExtraError, match=r"no_such_thing.*benchmarks\[peers\]"):
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


def test_no_graph_is_kept_while_dattri_works(trained, monkeypatch: pytest.MonkeyPatch):
    enabled = []

    class Attributor:
        generate_test_rep = transform_test_rep = None

        def __init__(self, **options: object) -> None:
            pass

        def cache(self, loader: torch.utils.data.DataLoader) -> None:
            enabled.append(torch.is_grad_enabled())

        def attribute(self, train: torch.utils.data.DataLoader, asked: torch.utils.data.DataLoader) -> torch.Tensor:
            enabled.append(torch.is_grad_enabled())
            return torch.zeros(len(train.dataset), len(asked.dataset))

    library = SimpleNamespace(IFAttributorCG=Attributor, AttributionTask=lambda **options: None)
    monkeypatch.setattr(dattri, "need", lambda module, package: library)
    assert dattri.dattri(trained, "IFAttributorCG").scores.shape == (8, 150)
    assert enabled == [False, False, False]


@pytest.mark.parametrize(
    ("name", "attributor", "called"),
    [
        ("if-cg", "IFAttributorCG", "regularization"),
        ("lissa", "IFAttributorLiSSA", "damping"),
        ("datainf", "IFAttributorDataInf", "regularization"),
    ],
)
def test_every_step_of_a_sweep_reaches_the_library(trained, monkeypatch: pytest.MonkeyPatch, name, attributor, called):
    given: list[dict[str, object]] = []

    class Attributor:
        generate_test_rep = transform_test_rep = None

        def __init__(self, **options: object) -> None:
            given.append(options)

        def cache(self, loader: torch.utils.data.DataLoader) -> None:
            pass

        def attribute(self, train: torch.utils.data.DataLoader, asked: torch.utils.data.DataLoader) -> torch.Tensor:
            return torch.zeros(len(train.dataset), len(asked.dataset))

    library = SimpleNamespace(**{attributor: Attributor}, AttributionTask=lambda **options: None)
    monkeypatch.setattr(dattri, "need", lambda module, package: library)
    for step in steps_of(name):
        METHODS[step].run(replace(trained, relabelled=None))
    assert [options[called] for options in given] == [0.001, 0.01, 0.1, 1.0]
    assert len({tuple(sorted(options)) for options in given}) == 1


def test_the_damping_of_gauss_newton_is_that_of_a_dense_solve(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("curvlinops")
    training = training_for("digits", limit=60, epochs=2, batch_size=16, model="linear")
    study = make_study(
        load("digits", limit=60), load("digits", train=False), training, 0.0, 4, torch.device("cpu"), seed=0
    )
    small = train_once(study)
    monkeypatch.setattr(curvlinops, "ITERATIONS", 60)
    model, (x, y), (asked, labels) = ended(small), study.train_tensors(), study.query_tensors()
    with torch.no_grad():
        inputs, others = (torch.cat([part.flatten(1), torch.ones(len(part), 1)], dim=1).double() for part in (x, asked))
        p, q = (model(part).double().softmax(1) for part in (x, asked))
    middle = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    size = 10 * inputs.shape[1]
    matrix = torch.einsum("ncd,na,nb->cadb", middle, inputs, inputs).reshape(size, size) / len(x)
    own = torch.einsum("nc,na->nca", p - torch.eye(10, dtype=p.dtype)[y], inputs).flatten(1)
    # The slope of log p_y / (1 − p_y) in the logits is 1 at y and −p_c / (1 − p_y) elsewhere.
    slope = (q / (1 - q.gather(1, labels[:, None]))).scatter(1, labels[:, None], -1.0)
    theirs = torch.einsum("nc,na->nca", slope, others).flatten(1)
    dampings = [METHODS[name].run.keywords["damping"] for name in steps_of("ggn-cg")]
    assert dampings == [METHODS[name].step for name in steps_of("ggn-cg")] == [0.001, 0.01, 0.1, 1.0]
    for name, damping in (("ggn-cg-0.1", 0.1), ("ggn-cg-1", 1.0)):
        damped = matrix + damping * torch.eye(size, dtype=matrix.dtype)
        wanted = (theirs @ torch.linalg.solve(damped, own.T)).numpy()
        found = METHODS[name].run(small).scores
        np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-3 * np.abs(wanted).max())


def test_the_loss_of_queries_is_a_sum_of_negative_margins():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    assert float(NegativeMargin()(logits, torch.tensor([0, 0]))) == pytest.approx(-2.0 + 1.0)


@pytest.mark.parametrize("name", [name for name in MODULES if name in UNSWEPT])
def test_scores_say_that_examples_of_the_own_class_help(trained, name):
    pytest.importorskip(MODULES[name], reason=f"{MODULES[name]} is not installed: pip install -e 'benchmarks[peers]'")
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
    assert change[gains].mean() > change[loses].mean()
    if name != "ekfac-head":  # among the few directions of so small a head, those of other classes may point away
        assert change[gains].mean() > 0 > change[loses].mean()


@pytest.mark.parametrize("name", ["if-cg", "datainf", "ggn-cg"])
def test_queries_solved_for_a_few_at_a_time_have_the_same_scores(trained, name, monkeypatch):
    pytest.importorskip(MODULES[name], reason=f"{MODULES[name]} is not installed: pip install -e 'benchmarks[peers]'")
    together = METHODS[name].run(trained).scores
    told = []
    monkeypatch.setattr(dattri, "LARGE", 0)
    monkeypatch.setattr(dattri, "AT_ONCE", dict.fromkeys(dattri.AT_ONCE, 3))
    monkeypatch.setattr(curvlinops, "LARGE", 0)
    monkeypatch.setattr(curvlinops, "FEW", 3)
    apart = METHODS[name].run(replace(trained, tell=told.append)).scores
    np.testing.assert_allclose(apart, together, atol=1e-3 * np.abs(together).max())
    assert told == ["3 of 8 queries solved", "6 of 8 queries solved", "8 of 8 queries solved"]


def test_what_is_solved_for_once_serves_every_batch_of_examples():
    class Attributor:
        def __init__(self) -> None:
            self.solved: list[int] = []

        def generate_test_rep(self, ckpt_idx: int, data: tuple[torch.Tensor, ...]) -> torch.Tensor:
            return data[0][0] + data[1][0]

        def transform_test_rep(self, ckpt_idx: int, test_rep: torch.Tensor) -> torch.Tensor:
            self.solved.append(len(test_rep))
            return 2 * test_rep

    attributor, queries = Attributor(), (torch.arange(5.0)[None, :, None], torch.ones(1, 5, 1))
    solve_once(attributor, 2, lambda message: None)
    for _ in range(3):
        found = attributor.transform_test_rep(0, attributor.generate_test_rep(0, queries))
        assert found.flatten().tolist() == [2, 4, 6, 8, 10]
    assert attributor.solved == [2, 2, 1]


def test_the_head_answers_as_the_network_does(trained):
    behind = HeadStudy(trained.study.problem, trained.study.queries, trained.study.wrong, trained.model)
    x, y = behind.train_tensors(np.array([5, 2]))
    assert y.tolist() == trained.study.problem.labels[[5, 2]].tolist()
    with torch.no_grad():
        np.testing.assert_allclose(
            head_of(behind)(x), trained.study.problem.predict(trained.model, np.array([5, 2])), rtol=1e-4, atol=1e-4
        )


def test_a_factor_after_the_last_layer_is_found_and_anything_else_is_refused(trained):
    study = trained.study

    class After(torch.nn.Module):
        def __init__(self, last) -> None:
            super().__init__()
            self.network, self.last = trained.model, last

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.network(x))

    eighth = HeadStudy(study.problem, study.queries, study.wrong, After(lambda z: z / 8))
    assert head_of(eighth).factor == pytest.approx(1 / 8, rel=1e-4)
    with pytest.raises(SettingError, match="After does more"):
        head_of(HeadStudy(study.problem, study.queries, study.wrong, After(torch.tanh)))
