"""dattri: influence functions of the Hessian by conjugate gradients (Koh and Liang, 2017), LiSSA (Agarwal et al., 2017)
and DataInf (Kwon et al., 2024), all weights.

Conjugate gradients: ten iterations, its default. LiSSA: batches of 100 and a hundred recursions; with its default of
single examples the recursion diverges on most networks. As in its own examples no graph is kept, which would grow with
every iteration of a solve.

All need a regularisation r, for which the package's default is none. 0.01 is used for each, and the steps beside it are
rows of their own. It is an absolute number in units of the mean loss, and what the package does with it differs:

    conjugate gradients    (H + rI)⁻¹
    LiSSA                  h ← v + (1 − r) h − Hh/c with c = 50, its default, and h/c in the end, which tends to
                           (H + rcI)⁻¹ v: "damping"
    DataInf                mean_i (g_i g_iᵀ + rI)⁻¹ over examples, layer by layer
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from sgoif.core.losses import negative_margin
from sgoif_bench.fidelity.answer import Answer, Cost, Trained
from sgoif_bench.fidelity.peers.common import LARGE, ended, examples, label_changes, need, queries, with_new_labels
from sgoif_bench.fidelity.study import Floats, Tell

REGULARISATION = 0.01
HESSIAN_EXAMPLES = 1000
"""Examples from which curvature is taken; the score is of all of them."""
GRADIENT_FLOATS = 2**28
"""Numbers in the table of gradients that is held at once."""
AT_ONCE = {"IFAttributorCG": 1, "IFAttributorLiSSA": 10, "IFAttributorDataInf": 20}
"""Queries at a time on a large network: as many as keep a GPU busy."""
OPTIONS: dict[str, dict[str, Any]] = {
    "IFAttributorCG": {"max_iter": 10},
    "IFAttributorLiSSA": {"recursion_depth": 100, "batch_size": 100, "scaling": 50.0},
    "IFAttributorDataInf": {},
}
CALLED = {"IFAttributorLiSSA": "damping"}
"""What an attributor calls its regularisation; the others by that name."""


def dattri(trained: Trained, name: str, regularisation: float = REGULARISATION) -> Answer:
    """Scores by one of its attributors."""
    core = need("dattri.algorithm.influence_function", "dattri")
    make_task = need("dattri.task", "dattri").AttributionTask
    study, device = trained.study, trained.study.problem.device
    model, cost = ended(trained), Cost(device)

    def loss(parameters: Any, data: Any) -> Tensor:
        inputs, labels = data
        return F.cross_entropy(functional_call(model, parameters, inputs), labels.long())

    def target(parameters: Any, data: Any) -> Tensor:
        inputs, labels = data
        return negative_margin(functional_call(model, parameters, inputs), labels.long()).sum()

    train, asked = examples(study), queries(study)
    spread = torch.linspace(0, len(train) - 1, min(HESSIAN_EXAMPLES, len(train))).long()
    some = torch.utils.data.TensorDataset(*(part[spread] for part in train.tensors))
    weights = sum(value.numel() for value in model.parameters())
    options = {**OPTIONS[name], CALLED.get(name, "regularization"): regularisation}
    at_once = max(50, min(len(train), GRADIENT_FLOATS // weights))
    few = AT_ONCE[name] if weights > LARGE else len(asked)
    # The others solve for every batch that they are given here, and add the solutions up.
    cached = min(len(some), at_once) if name == "IFAttributorDataInf" else len(some)
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def attributed(data: TensorDataset) -> Floats:
        found = attributor.attribute(DataLoader(data, batch_size=at_once), DataLoader(asked, batch_size=len(asked)))
        scores: Floats = found.detach().T.float().cpu().numpy().copy()
        return scores

    with cost.counted(), torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(study.problem.seed)
        task = make_task(loss_func=loss, model=model, checkpoints=state, target_func=target)
        attributor = getattr(core, name)(task=task, device=str(device), **options)
        solve_once(attributor, few, trained.tell)
        attributor.cache(DataLoader(some, batch_size=cached))
        scores = attributed(train)
    changes = None
    if trained.relabelled is not None:
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(study.problem.seed)
            relabelled = attributed(with_new_labels(study, trained.relabelled))
        changes = label_changes(scores, relabelled, trained.relabelled)
    return Answer(scores, cost.seconds, cost.memory, relabelled=changes)


def solve_once(attributor: Any, few: int, tell: Tell) -> None:
    """Solve for so many queries at a time and keep what was found, instead of anew for every batch of examples."""
    generate, solve = attributor.generate_test_rep, attributor.transform_test_rep
    kept: list[Tensor] = []

    def solved(ckpt_idx: int, data: tuple[Tensor, ...]) -> Tensor:
        if not kept:
            parts: list[Tensor] = []
            for some in zip(*(whole.split(few, dim=1) for whole in data), strict=True):
                parts.append(solve(ckpt_idx, generate(ckpt_idx, some)))
                tell(f"{sum(map(len, parts))} of {data[0].shape[1]} queries solved")
            kept.append(torch.cat(parts))
        return kept[0]

    attributor.generate_test_rep = solved
    attributor.transform_test_rep = lambda ckpt_idx, test_rep: test_rep
