"""`sgoif demo`: wrong labels in handwritten digits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgoif.cli.options import AsJson
from sgoif.cli.terminal import message, new_table, print_json, results, with_progress

if TYPE_CHECKING:
    from rich.table import Table

METHOD_NAMES = {
    "influence": "influence",
    "influence_no_gate": "influence without the gate",
    "loss": "mean loss",
    "margin": "margin (AUM)",
}


def demo_command(
    seed: Annotated[int, typer.Option(help="Seed of noise, split, weights and batches.")] = 0,
    epochs: Annotated[int, typer.Option(help="Epochs of training.")] = 30,
    noise_rate: Annotated[float, typer.Option(help="Share of all labels that are made wrong.")] = 0.2,
    out: Annotated[Path, typer.Option(help="Folder for demo.json and report.html.")] = Path("runs/demo"),
    as_json: AsJson = False,
) -> None:
    """Find wrong labels in scikit-learn's digits while a small network trains; about half a minute."""
    from sgoif.audit.interruption import Interruption
    from sgoif.commands.demo.demo import DemoSettings, run_demo, save
    from sgoif.core.serialization import check_writable

    settings = DemoSettings(epochs=epochs, noise_rate=noise_rate, seed=seed)
    check_writable(out / "demo.json")
    page = out / "report.html"
    message(f"training a small network on handwritten digits for {epochs} epochs")
    interruption = Interruption()
    with interruption.watching():
        result = with_progress(lambda progress: run_demo(settings, page, progress, interruption))
    command = f"sgoif demo --seed {seed} --epochs {epochs} --noise-rate {noise_rate}"
    message(f"results in {save(result, out, command)}")
    message(f"page of suspicious digits: {page}")
    if as_json:
        print_json({"seconds": round(result["seconds"], 2), "methods": result["methods"]})
    else:
        results().print(_demo_table(result))
        print(_demo_sentence(result))


def _demo_sentence(result: dict[str, Any]) -> str:
    found = result["label_errors"]
    return (
        f"Called wrong: {found['selected']} labels, {found['selected_wrong']} of them rightly. Estimated share of wrong"
        f" labels: {found['noise_rate']:.1%} ({found['noise_rate_low']:.1%} to {found['noise_rate_high']:.1%});"
        f" the truth is {found['noise_rate_true']:.1%}."
    )


def _demo_table(result: dict[str, Any]) -> Table:
    title = f"{result['wrong_labels']} of {result['examples']} labels are wrong. Who finds them?"
    table = new_table(title, ("score",), ("P@1%", "AUPR", "AUROC"))
    table.caption = f"{result['seconds']:.1f} s in all; percent, over the training examples"
    table.caption_justify = "left"
    for method, name in METHOD_NAMES.items():
        metrics = result["methods"][method]
        table.add_row(name, *(f"{100 * metrics[column]:.1f}" for column in ("p_at_1", "aupr", "auroc")))
    return table
