"""MOS: a softmax for every group of classes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from trained_cases import QUIET, as_input, clean

from sgoif.errors import SettingError
from sgoif_bench.ood.trained import common, mos

# MOS


def by_group(logits: Tensor, group_of: list[int]) -> list[tuple[list[int], Tensor]]:
    """Classes of each group and their probabilities with that of "others" last, the slow way."""
    found = []
    for group in range(max(group_of) + 1):
        members = [label for label, own in enumerate(group_of) if own == group]
        columns = [*members, len(group_of) + group]
        found.append((members, logits[:, columns].softmax(dim=1)))
    return found


def test_group_softmax_by_hand() -> None:
    group_of = [1, 0, 1, 2, 0]
    groups = mos.Groups(group_of, torch.device("cpu"))
    logits = torch.randn(6, groups.outputs, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    classes, others = groups.log_probabilities(logits)
    loss, least = torch.zeros(6), torch.ones(6)
    for group, (members, p) in enumerate(by_group(logits, group_of)):
        assert torch.allclose(classes[:, members].exp(), p[:, :-1], atol=1e-6)
        assert torch.allclose(others[:, group].exp(), p[:, -1], atol=1e-6)
        for row, label in enumerate(labels.tolist()):
            target = members.index(label) if label in members else len(members)
            loss[row] -= p[row, target].log()
        least = torch.minimum(least, p[:, -1])
    assert groups.outputs == 8
    assert float(groups.loss(logits, labels)) == pytest.approx(float(loss.mean()), rel=1e-5)
    assert torch.allclose(groups.score(logits), least, atol=1e-6)


def test_an_input_that_is_others_everywhere_scores_highest() -> None:
    groups = mos.Groups([0, 0, 1], torch.device("cpu"))
    belongs, foreign = [5.0, 0.0, 0.0, 0.0, 3.0], [0.0, 0.0, 0.0, 4.0, 4.0]
    low, high = groups.score(torch.tensor([belongs, foreign])).tolist()
    assert low < 0.01
    assert high > 0.9


def test_classes_are_grouped_by_their_mean_features() -> None:
    means = torch.tensor([[0.0, 0.0], [9.0, 9.0], [0.1, 0.0], [9.0, 9.2], [0.0, 0.2]])
    found = mos.cluster_classes(means, 2, torch.Generator().manual_seed(0))
    assert found[0] == found[2] == found[4] != found[1] == found[3]
    features = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    averages = mos.class_means(features, torch.tensor([0, 0, 2]), 3)
    assert averages.tolist() == [[2.0, 0.0], [0.0, 0.0], [0.0, 5.0]]
    assert [mos.default_groups(classes) for classes in (2, 10, 100, 1000)] == [2, 2, 4, 8]


def test_mos_trains_a_new_head_on_the_body_of_a_plain_network() -> None:
    problem = clean(size=300, epochs=4)
    scorer = mos.mos(problem, None, QUIET, groups=[0, 1, 1, 2])
    assert isinstance(scorer.classifier, mos.GroupClassifier)
    assert scorer.details == {"groups": [0, 1, 1, 2], "tuning_epochs": 1}
    plain = problem.fit(problem.new_model(), problem.batches())
    body, _ = common.headless(plain)
    trained = scorer.classifier.network
    for name, value in body.state_dict().items():
        assert torch.equal(trained.body.state_dict()[name], value), name
    assert trained.head.weight.abs().max() > 0
    images = as_input(problem, problem.images[:30])
    logits = trained(images).detach()
    parts = by_group(logits, [0, 1, 1, 2])
    answers = []
    for row in range(30):
        best = max(parts, key=lambda part: float(part[1][row, :-1].max()))
        answers.append(best[0][int(best[1][row, :-1].argmax())])
    assert scorer.classifier(images).argmax(dim=1).tolist() == answers
    least = torch.stack([p[:, -1] for _, p in parts]).amin(dim=0)
    assert torch.allclose(scorer.score(images), least, atol=1e-6)


def test_mos_checks_its_groups() -> None:
    problem = clean(size=64)
    for wrong, said in ((1, "groups = 1"), (5, "groups = 5"), ([0, 1], "name 2 classes")):
        with pytest.raises(SettingError, match=said):
            mos.mos(problem, None, QUIET, groups=wrong)
    for numbers in ([0, 2, 2, 0], [0, 0, 0, 0]):
        with pytest.raises(SettingError, match="without a gap"):
            mos.Groups(numbers, torch.device("cpu"))
