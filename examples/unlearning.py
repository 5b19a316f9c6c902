"""Deletion requests for a small network on handwritten digits, from the request to the evidence; about half a minute.

    python examples/unlearning.py [--folder FOLDER] [--epochs N] [--seed N]

scikit-learn carries the digits, so nothing is downloaded. State and log are left in FOLDER for a look.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sgoif import indexed, split_holdout
from sgoif.tasks import Unlearner
from sgoif.tasks.unlearning import LogError, RequestError, verify_log
from sgoif.tasks.unlearning.newton import minimise


def digits() -> TensorDataset:
    """1,797 images of 8×8 pixels with their labels."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
    return TensorDataset(images, torch.tensor(labels))


def network() -> nn.Module:
    """Two convolutions and a linear head."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def train(model: nn.Module, data: Any, epochs: int) -> None:
    """An ordinary training loop."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    loader = DataLoader(indexed(data), batch_size=64, shuffle=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs * len(loader))
    for _ in range(epochs):
        for x, y, _ in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()


def accuracy(model: nn.Module, data: Any, device: torch.device) -> float:
    """Share of right answers."""
    model.eval()
    with torch.no_grad():
        right = [model(x.to(device)).argmax(1) == y.to(device) for x, y in DataLoader(data, batch_size=500)]
    return float(torch.cat(right).double().mean())


def predicted_and_retrained(unlearner: Unlearner, rows: list[int]) -> tuple[Tensor, Tensor]:
    """Change of the mean held-out loss for deletions of one example: by influence, and by training the head again."""
    fitted, held = unlearner.fitted, unlearner.queries.data

    def loss(w: Tensor) -> Tensor:
        return nn.functional.cross_entropy(held.logits(w), held.labels)

    before, real = loss(fitted.w), []
    for row in rows:
        left = fitted.objective.leaving_out(torch.tensor([row], device=fitted.w.device))
        real.append(loss(minimise(left, fitted.w, factor=fitted.factor).w) - before)
    return unlearner.influence()[rows], torch.stack(real)


def rank_correlation(one: Tensor, other: Tensor) -> float:
    """Spearman's, where no two values are equal."""
    ranks = torch.stack([values.argsort().argsort().double() for values in (one, other)])
    return float(torch.corrcoef(ranks)[0, 1])


def story(unlearner: Unlearner, model: nn.Module, held: Any, folder: Path) -> dict[str, Any]:
    """Requests, decisions, a removal, a check and the log, told on the way; returns the main figures."""
    device = next(model.parameters()).device
    influence = unlearner.influence()
    order = influence.abs().argsort(descending=True).tolist()
    rows = order[:20] + order[len(order) // 2 : len(order) // 2 + 20]
    correlation = rank_correlation(*predicted_and_retrained(unlearner, rows))
    print(
        f"\n{len(rows)} deletions of one example, influence against training the head again: Spearman {correlation:.3f}"
    )

    print("\nThree requests: an example that hardly matters, the one that matters most, and a group of 30.")
    ids = unlearner.ids
    for some, reason in (
        ([order[-1]], "withdrew consent"),
        ([order[0]], "withdrew consent"),
        (order[100:130], "contract of a supplier ended"),
    ):
        print(f"  {unlearner.request([ids[row] for row in some], reason=reason)}")
    print(f"In order of urgency: requests {', '.join(str(decision.number) for decision in unlearner.pending())}.")

    print("\nRequests that cannot be:")
    for wrong in ("no-such-example", ids[order[0]]):
        try:
            unlearner.request(wrong)
        except RequestError as error:
            print(f"  {error}")

    before = accuracy(model, held, device)
    removal = unlearner.remove()
    print(f"\n{removal}")
    check = unlearner.check()
    print(check)
    unlearner.apply_to(model)
    print(f"Held-out accuracy of the network {before:.1%}, with the new head {accuracy(model, held, device):.1%}.")
    unlearner.save(folder / "unlearning.npz")

    log = folder / "unlearning.jsonl"
    sound = verify_log(log)
    print(f"\nThe log {log} is {'sound' if sound.intact else 'broken'}: {sound.entries} entries, head {sound.head}")
    forged = folder / "forged.jsonl"
    forged.write_text(
        log.read_text(encoding="utf-8").replace("withdrew consent", "was never asked", 1), encoding="utf-8"
    )
    print(f"With one reason changed: {verify_log(forged).problem}.")
    try:
        Unlearner.load(folder / "unlearning.npz", log=forged)
    except LogError as error:
        print(f"Nobody can go on with that: {error}.")
    return {"spearman": correlation, "closed": check.closed, "certificate_kept": check.holds, "holds": removal.holds}


def main() -> dict[str, Any]:
    """Train, ask, remove, check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/unlearning"), help="where state and log go")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "unlearning.jsonl").unlink(missing_ok=True)  # an example starts anew; a real log never does

    torch.manual_seed(given.seed)
    train_set, held = split_holdout(digits(), share=0.25, seed=given.seed)
    model = network()
    train(model, train_set, given.epochs)
    right = accuracy(model, held, torch.device("cpu"))
    print(f"Trained on {len(train_set)} digits; {right:.1%} of {len(held)} others right.")
    unlearner = Unlearner.fit(model, train_set, held_out=held, log=given.folder / "unlearning.jsonl")
    return story(unlearner, model, held, given.folder)


if __name__ == "__main__":
    main()
