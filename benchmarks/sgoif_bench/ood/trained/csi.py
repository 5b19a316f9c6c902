"""CSI: contrast an image not only with others but with itself turned, then ask all four turns for the class.

Tack, Mo, Jeong, Shin: CSI: Novelty Detection via Contrastive Learning on Distributionally Shifted Instances.
NeurIPS 2020.

Here the paper's variant for labelled data, trained by SupCLR over shifted instances. A turn by s quarter circles is a
shift: turned images stand for what does not belong, so they are pushed away. With K classes, image i of class y turned
s times has the label c = y + K s. Of a batch of B images all four turns are taken, and two random views of each, 8B in
all. With z the normalised projection of a view's features and P(v) the other views with the label of v,

    L = mean_v  −1/|P(v)| Σ_{p ∈ P(v)}  log( exp(z_v·z_p / τ) / Σ_{a ≠ v} exp(z_v·z_a / τ) )

Then the features φ are frozen and linear layers learn, on views as before: the class and turn together (joint, 4K), the
turn (4) and the class of unturned images (K). The answer is the joint layer's mean over the turns (CSI-ens),

    ℓ_k(x) = ¼ Σ_s joint(φ(turn_s x))_{k + K s},      score(x) = log(1 − max_k softmax(ℓ(x))_k);

the other two layers are told in the details and score nothing.

Numbers of the authors' code for labelled data: τ = 0.07, projections of 128 from one hidden layer, views of SimCLR with
crops of 8 to 100%, batches of 512 turned images (so a quarter of the recipe's batch of images, twice), linear layers by
SGD at 0.1 falling tenfold after 60, 75 and 90% of their 100 epochs. The weight decay of 1e-6 is OpenOOD's. The recipe's
SGD takes the place of LARS, and both parts have the recipe's epochs, as in OpenOOD, whose 100 and 100 are
`--epochs 100` (the authors: 700 and 100; OpenOOD scores by the class layer alone).

Cost: 8 trainings for the contrast, and 4 for as many epochs as the linear part has, though that has no backward pass
through the network. Evaluation takes four forward passes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.batches import Batches
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Problem
from sgoif_bench.labels.rivals.common import torch_stream
from sgoif_bench.ood.trained.common import headless, log_doubt, scored
from sgoif_bench.ood.trained.method import Scorer
from sgoif_bench.ood.trained.views import (
    TURNS,
    ContrastiveViews,
    fresh,
    mirrored,
    pixel_batches,
    quarter_turns,
    side_of,
    to_network,
)

TEMPERATURE = 0.07
CONTRAST_DECAY = 1e-6
PROJECTION = 128
LINEAR_RATE = 0.1
LINEAR_DECAY = 1e-6
LINEAR_MILESTONES, LINEAR_FALL = (0.6, 0.75, 0.9), 0.1
_CONTRAST_STREAM, _LINEAR_STREAM = 321, 322
_PROJECTION, _HEADS, _LINEAR_BATCHES = 323, 324, 325


def contrastive_loss(embeddings: Tensor, labels: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """L of the module docstring; embeddings [n, d] of any length, labels [n], each of which occurs at least twice."""
    z = F.normalize(embeddings.float(), dim=1)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    similarity = (z @ z.T / temperature).masked_fill(itself, float("-inf"))
    log_share = similarity - similarity.logsumexp(dim=1, keepdim=True)
    positive = (labels[:, None] == labels[None, :]) & ~itself
    return -(log_share.masked_fill(~positive, 0).sum(dim=1) / positive.sum(dim=1)).mean()


def shifted_labels(labels: Tensor, classes: int) -> Tensor:
    """c = y + K s for all images unturned, then all turned once, and so on, [4n]."""
    return torch.cat([labels + classes * turn for turn in range(TURNS)])


class Heads(nn.Module):
    """The linear layers on frozen features; they do not share anything, so one optimizer serves all three."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.joint = nn.Linear(width, TURNS * classes)
        self.turn = nn.Linear(width, TURNS)
        self.label = nn.Linear(width, classes)


class Ensemble(nn.Module):
    """From images to ℓ(x), the mean over the turns of the joint layer's logits for that turn."""

    def __init__(self, body: nn.Module, heads: Heads) -> None:
        super().__init__()
        self.body, self.heads = body, heads

    def forward(self, images: Tensor) -> Tensor:
        total: Tensor | None = None
        for turn in range(TURNS):  # one after the other: four times the batch at once would need four times the memory
            joint = self.heads.joint(self.body(torch.rot90(images, turn, (2, 3))))
            of_turn: Tensor = joint.chunk(TURNS, dim=1)[turn]
            total = of_turn if total is None else total + of_turn
        assert total is not None
        return total / TURNS


def _contrast(
    problem: Problem, body: nn.Module, width: int, views: ContrastiveViews, temperature: float, tell: Say
) -> None:
    projection = fresh(
        problem, _PROJECTION, lambda: nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, PROJECTION))
    )
    model = nn.Sequential(body, projection)
    batches = _quarter_batches(problem, number=0)
    epochs = problem.recipe.epochs
    optimizer, schedule = problem.optimizer(model, epochs * len(batches))
    for group in optimizer.param_groups:
        group["weight_decay"] = CONTRAST_DECAY
    generator = torch_stream(problem, _CONTRAST_STREAM)
    for epoch in range(1, epochs + 1):
        model.train()
        total = torch.zeros((), device=problem.device)
        for pixels, labels, _ in batches:
            pairs = torch.cat([quarter_turns(mirrored(pixels, generator)) for _ in range(2)])
            with problem.autocast():
                embeddings = model(to_network(problem, views(pairs, generator)))
            loss = contrastive_loss(embeddings, shifted_labels(labels, problem.classes).repeat(2), temperature)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            total += loss.detach()
        tell(f"csi, contrast: epoch {epoch} of {epochs}, loss {float(total) / len(batches):.3f}")


def _linear(
    problem: Problem, body: nn.Module, heads: Heads, views: ContrastiveViews, epochs: int, tell: Say
) -> dict[str, float]:
    """Train the heads on frozen features; returns the last epoch's share of right answers of each."""
    batches = _quarter_batches(problem, number=_LINEAR_BATCHES)
    optimizer = torch.optim.SGD(heads.parameters(), lr=LINEAR_RATE, weight_decay=LINEAR_DECAY)
    schedule = torch.optim.lr_scheduler.MultiStepLR(
        optimizer, [int(share * epochs * len(batches)) for share in LINEAR_MILESTONES], gamma=LINEAR_FALL
    )
    generator = torch_stream(problem, _LINEAR_STREAM)
    body.eval()
    right: dict[str, float] = {}
    for epoch in range(1, epochs + 1):
        correct = dict.fromkeys(("joint", "turn", "label"), torch.zeros((), device=problem.device))
        for pixels, labels, _ in batches:
            turned = views(quarter_turns(mirrored(pixels, generator)), generator)
            with torch.no_grad(), problem.autocast():
                features = body(to_network(problem, turned))
            features = features.float()
            turns = torch.arange(TURNS, device=labels.device).repeat_interleave(len(labels))
            answers = {
                "joint": (heads.joint(features), shifted_labels(labels, problem.classes)),
                "turn": (heads.turn(features), turns),
                "label": (heads.label(features[: len(labels)]), labels),
            }
            torch.stack([F.cross_entropy(logits, given) for logits, given in answers.values()]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            for name, (logits, given) in answers.items():
                correct[name] = correct[name] + (logits.argmax(dim=1) == given).float().mean() * len(labels)
        right = {name: float(count) / len(problem) for name, count in correct.items()}
        tell(f"csi, linear part: epoch {epoch} of {epochs}, {right['label']:.3f} of the classes right")
    return right


def _quarter_batches(problem: Problem, number: int) -> Batches:
    """A quarter of the recipe's batch: with all turns it has the recipe's size."""
    return pixel_batches(problem, number, augment=False, batch_size=max(1, problem.recipe.batch_size // TURNS))


def csi(
    problem: Problem,
    outliers: Tensor | None,
    tell: Say,
    *,
    temperature: float = TEMPERATURE,
    views: ContrastiveViews | None = None,
) -> Scorer:
    """Learn by contrast of turned images, then the linear layers; the score is that of the ensemble over turns."""
    del outliers
    if temperature <= 0:
        raise SettingError(f"temperature = {temperature} must be positive")
    side_of(problem)
    chosen = ContrastiveViews() if views is None else views
    body, width = headless(problem.new_model())
    _contrast(problem, body, width, chosen, temperature, tell)
    heads = fresh(problem, _HEADS, lambda: Heads(width, problem.classes))
    epochs = problem.recipe.epochs
    right = _linear(problem, body, heads, chosen, epochs, tell)
    model = Ensemble(body, heads).eval()
    details = {"temperature": temperature, "linear_epochs": epochs} | {f"{k}_accuracy": v for k, v in right.items()}
    trainings = 2.0 * TURNS + TURNS * epochs / problem.recipe.epochs
    return Scorer(scored(model, log_doubt), model, trainings, details)
