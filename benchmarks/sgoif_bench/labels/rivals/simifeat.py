"""SimiFeat: what the nearest neighbours say of a label, in the features of the trained network.

Zhaowei Zhu, Zihao Dong, Yang Liu: Detecting Corrupted Labels Without Training a Model to Predict. ICML 2022.

Votes and scores are those of `pretrained.methods.neighbours`, k = 10 and M = 21 rounds on changed images:

    simifeat_vote   share of rounds in which the neighbours vote for another class than the given one, examples with the
                    same told apart by their share of votes for others; flagged where that is most rounds
    simifeat_rank   mean over the rounds of −log of the given label's part of the votes. The paper's threshold, which
                    needs an estimate of how labels go wrong, changes no ranking within a class and is left out.

The authors' features come from a network that never saw these labels (CLIP, or one trained on other images); these
come from the plain training on the given labels, as those of `knn` do. With features from elsewhere it stands in
`sgoif-bench pretrained`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sgoif_bench.batches import crop_and_flip
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem, last_linear
from sgoif_bench.labels.rivals.common import torch_stream
from sgoif_bench.labels.rivals.influence_common import to_scores, train
from sgoif_bench.pretrained.methods.neighbours import votes_against
from sgoif_bench.pretrained.pictures import neighbours

NEIGHBOURS = 10
ROUNDS = 21
_STREAM = 501


def simifeat_vote(problem: Problem, tell: Say) -> Outcome:
    """The vote, from a plain training."""
    return family(problem, tell)["simifeat-vote"]


def simifeat_rank(problem: Problem, tell: Say) -> Outcome:
    """The rank, from a plain training."""
    return family(problem, tell)["simifeat-rank"]


def family(problem: Problem, tell: Say) -> dict[str, Outcome]:
    """Both, from one plain training."""
    return simifeat_of(problem, train(problem, tell, "SimiFeat"), tell)


def simifeat_of(problem: Problem, model: nn.Module, tell: Say) -> dict[str, Outcome]:
    """Both, from a network that is trained already."""
    given = torch.from_numpy(problem.labels).to(problem.device)
    generator = torch_stream(problem, _STREAM)
    against = torch.zeros(3, len(problem), dtype=torch.float64, device=problem.device)
    for _ in range(ROUNDS):
        near = neighbours(changed_features(problem, model, generator), NEIGHBOURS)
        against += torch.stack(votes_against(near, given, problem.classes)) / ROUNDS
    tell(f"SimiFeat: {ROUNDS} rounds of {NEIGHBOURS} neighbours")
    wrong, share, rank = against
    details = {"neighbours": NEIGHBOURS, "rounds": ROUNDS}
    return {
        "simifeat-vote": Outcome(
            to_scores(wrong + share / (ROUNDS + 1)), flagged=(wrong > 0.5).cpu().numpy(), details=details
        ),
        "simifeat-rank": Outcome(to_scores(rank), details=details),
    }


@torch.no_grad()
def changed_features(problem: Problem, model: nn.Module, generator: torch.Generator) -> Tensor:
    """Features [N, D] of all images, each changed as in training."""
    kept: list[Tensor] = []
    handle = last_linear(model).register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0].detach().float()))
    model.eval()
    try:
        for x, _, _ in problem.plain_batches():
            if problem.recipe.augment:
                x = crop_and_flip(x, generator, problem.recipe.padding, problem.recipe.mirror)
            with problem.autocast():
                model(x)
    finally:
        handle.remove()
    return torch.cat(kept)
