"""`sgoif unlearn`: requests to delete training examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sgoif.cli.options import AsJson, Device, computing, made_from, with_options
from sgoif.cli.terminal import new_table, print_json, print_result, print_sentence, results, with_progress

if TYPE_CHECKING:
    from sgoif.tasks.unlearning import Check, Decision, Removal, Unlearner

Done = TypeVar("Done", "Decision", "Removal", "Check")
BROKEN = 3
"""Exit code of `verify` for a log that cannot be trusted."""

app = typer.Typer(
    help="Requests to delete training examples: what removing them does, which call for a new training, evidence.",
    no_args_is_help=True,
)

Key = Annotated[
    Path | None,
    typer.Option(
        "--key",
        help="The key that entries of the log are proven with; keep it outside the folder of the log.",
        show_default="the one of `sgoif` in your configuration directory",
    ),
]
DEFAULT_STATE = Path("unlearning.npz")


def session_of(
    state: Annotated[Path, typer.Option("--state", help="The file that `sgoif unlearn init` wrote.")] = DEFAULT_STATE,
    log: Annotated[
        Path | None,
        typer.Option("--log", help="The log, where it is not where it was.", show_default="that of the state"),
    ] = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Which requests, where they are logged, what proves it, and what is printed."""


@app.command("init")
@with_options(computing)
def init_command(
    run: Annotated[
        Path | None,
        typer.Argument(help="Run directory of a finished `sgoif audit`; the ids are the paths of its images."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="package.module:factory, where RUN trained a network of your own: it is imported on your word and not"
            " on that of a file.",
            show_default="the run's, if built in or of timm",
        ),
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(
            help="Instead of RUN: FILE.npz with features (n × D), labels (n), and where you have them ids (n),"
            " held_features, held_labels, class_names."
        ),
    ] = None,
    state: Annotated[Path, typer.Option(help="The file to write; later commands read and change it.")] = DEFAULT_STATE,
    log: Annotated[Path, typer.Option(help="The audit log to begin.")] = Path("unlearning.jsonl"),
    key: Key = None,
    continue_log: Annotated[
        bool,
        typer.Option("--continue", help="The network was trained again: go on with the log, and replace the state."),
    ] = False,
    l2: Annotated[float, typer.Option(help="L2 penalty of the head; the weight decay of the training.")] = 5e-4,
    steps: Annotated[int, typer.Option(help="Most Newton steps of a removal.")] = 6,
    max_logits: Annotated[
        float, typer.Option(help="Can wait: a typical logit is this close to that of the retrained head.")
    ] = 0.01,
    max_flips: Annotated[int, typer.Option(help="Can wait: at most so many held-out predictions change.")] = 0,
    max_loss: Annotated[
        float, typer.Option(help="Can wait: the held-out loss changes by at most this share of itself.")
    ] = 0.01,
    max_share: Annotated[
        float, typer.Option(help="Can wait: at most this share of the examples is deleted since the training.")
    ] = 0.01,
    max_class_share: Annotated[float, typer.Option(help="The same for the examples of any one class.")] = 0.1,
    **given: Any,
) -> None:
    """Read the features of a trained network's data, fit its last layer to them, and begin an audit log."""
    given |= locals()
    from sgoif.commands.unlearn.session import init, status
    from sgoif.tasks.unlearning import Limits
    from sgoif.tasks.unlearning.settings import UnlearnerSettings

    limits = Limits(logits=max_logits, flips=max_flips, loss=max_loss, share=max_share, class_share=max_class_share)
    head = UnlearnerSettings(l2=l2, steps=steps, limits=limits)
    unlearner = with_progress(lambda progress: made_from(init, given, head=head, progress=progress))
    if given["as_json"]:
        print_json({"state": str(state), **status(unlearner)})
        return
    certificate = unlearner.certificate()
    print(
        f"{state}: {len(unlearner):,} examples; removals are judged by {len(unlearner.queries):,}"
        f" {unlearner.queries.kind} examples. The head is within {certificate.bound:.2g} of its optimum."
    )
    print(f"log: {log}, head {unlearner.last_hash}")


@app.command("request")
@with_options(session_of)
def request_command(
    ids: Annotated[list[str] | None, typer.Argument(help="Examples to delete, by their ids.")] = None,
    listing: Annotated[
        Path | None, typer.Option("--from", help="A file with one id a line; - reads standard input.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, for the log.")] = "",
    device: Device = "auto",
    **given: Any,
) -> None:
    """Ask for examples to be deleted: what that does, and whether the network has to be trained again now."""
    given |= locals()
    from sgoif.commands.unlearn.session import read_ids

    names = read_ids(ids or [], listing)
    _act(given, lambda unlearner: unlearner.request(names, reason=reason), _decided)


@app.command("plan")
@with_options(session_of)
def plan_command(**given: Any) -> None:
    """List what waits to be removed, and what waits for a new training, the most urgent first. Changes nothing."""
    from sgoif.commands.unlearn.session import load, not_in_state, status
    from sgoif.tasks.unlearning.text import counted

    unlearner = made_from(load, given)
    later = not_in_state(unlearner, given["key"], given["state"])
    pending, standing = unlearner.pending(), status(unlearner)
    numbers = {decision.number for decision in pending}
    done = [decision for decision in unlearner.outstanding() if decision.number not in numbers]
    if given["as_json"]:
        waiting = {"pending": pending, "waiting_for_retraining": done}
        records = {name: [decision.record() for decision in decisions] for name, decisions in waiting.items()}
        print_json({**records, "not_in_state": later, **standing})
        return
    _tell_plan("waiting to be removed from the head", pending)
    _tell_plan("removed from the head, waiting for the network to be trained again", done)
    if not pending and not done:
        print(f"nothing is waiting; deleted so far: {counted(standing['deleted'], 'example')}")
    if later:
        print(
            f"the log has {counted(later, 'entry', 'entries')} that the state does not have yet; the next `request`,"
            " `remove`, `check` or `head` catches up where they are proven"
        )


@app.command("remove")
@with_options(session_of)
def remove_command(
    request: Annotated[
        list[int] | None,
        typer.Option("--request", help="Only this request; can be repeated.", show_default="all that are pending"),
    ] = None,
    device: Device = "auto",
    **given: Any,
) -> None:
    """Take the examples of pending requests out of the head and out of the state, with a certificate."""
    given |= locals()
    _act(given, lambda unlearner: unlearner.remove(request or None))


@app.command("check")
@with_options(session_of)
def check_command(device: Device = "auto", **given: Any) -> None:
    """Train the head again from zeros without what was deleted, and compare it with the one that is there."""
    given |= locals()
    _act(given, lambda unlearner: unlearner.check())


@app.command("head")
@with_options(session_of)
def head_command(
    out: Annotated[Path, typer.Option(help="FILE.npz to write: weight (classes × features) and bias.")],
    **given: Any,
) -> None:
    """Write the head's weights, to be put into the last linear layer of the network."""
    from sgoif.commands.unlearn.session import session, status, write_head
    from sgoif.errors import SettingError

    if out.is_dir() or out.resolve() == given["state"].resolve():
        raise SettingError(f"--out {out} cannot be written; give the name of another file, e.g. head.npz")
    if out.suffix.lower() != ".npz":
        raise SettingError(f"--out {out} would not be what it is called: a numpy archive is written. Give FILE.npz")
    with made_from(session, given) as unlearner:
        write_head(unlearner, out)
        found = {"out": str(out), "layer": unlearner.head_name, **status(unlearner)}
    print_result(
        found, given["as_json"], f"{out}: weight and bias of the layer {found['layer'] or 'after the features'}"
    )


@app.command("verify")
def verify_command(
    log: Annotated[Path, typer.Argument(help="The audit log.")] = Path("unlearning.jsonl"),
    expect: Annotated[
        str | None, typer.Option(help="A hash that was noted before; without one, a cut-off end cannot be seen.")
    ] = None,
    key: Key = None,
    no_key: Annotated[bool, typer.Option("--no-key", help="Check the chain alone, as one who has no key.")] = False,
    state: Annotated[
        Path | None,
        typer.Option(help="The state that the log belongs to.", show_default="unlearning.npz beside the log, if any"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that no line of a log was changed, removed, added or moved, that the key wrote it, and that the state fits.

    Exit code 0: the log is sound. 3: it cannot be trusted; the first broken line is named. 2: it cannot be read.
    """
    from sgoif.commands.unlearn.verification import verify

    verified = verify(log, expect=expect, key=key, no_key=no_key, state=state)
    print_result(verified.record(), as_json, "\n".join(verified.lines()))
    if not verified.found.intact:
        raise typer.Exit(BROKEN)


def _act(given: Mapping[str, Any], act: Callable[[Unlearner], Done], text: Callable[[Done], str] = str) -> None:
    """Let the unlearner act, and print what it did and where the log ends then."""
    from sgoif.commands.unlearn.session import session

    with made_from(session, given) as unlearner:
        done = act(unlearner)
        found = {**done.record(), "log_head": unlearner.last_hash}
    print_result(found, given["as_json"], text(done))


def _decided(decision: Decision) -> str:
    from sgoif.tasks.unlearning.records import describe_effect
    from sgoif.tasks.unlearning.text import counted

    what = "RETRAIN NOW" if decision.now else "CAN WAIT"
    reasons = (f"  - {reason}" for reason in decision.reasons)
    first = f"request {decision.number}, {counted(len(decision.ids), 'example')}: {what}"
    return "\n".join([first, *reasons, describe_effect(decision.effect)])


def _tell_plan(title: str, decisions: list[Decision]) -> None:
    """One line a request."""
    if not decisions:
        return
    from rich.text import Text

    from sgoif.tasks.unlearning.text import quoted

    table = new_table(title, (), ("request",))
    for heading in ("examples", "retrain"):
        table.add_column(heading)
    for heading in ("urgency", "flips", "loss change", "logits off by"):
        table.add_column(heading, justify="right")
    for decision in decisions:
        rest = f" and {len(decision.ids) - 1:,} more" if len(decision.ids) > 1 else ""
        names = f"{quoted(decision.ids[0])}{rest}"
        figures = (
            f"{decision.urgency:.3g}",
            str(decision.effect.flips),
            f"{decision.effect.change:+.2g}",
            f"<= {decision.logits:.2g}",
        )
        table.add_row(str(decision.number), Text(names), decision.when, *figures)
    results().print(table)
    for decision in decisions:
        why = "; ".join(decision.reasons if decision.now else decision.reasons[:1])
        print_sentence(f"request {decision.number}: {why}")
