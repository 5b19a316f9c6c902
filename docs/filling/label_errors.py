"""Tables of the page about wrong labels and how far the answer can be believed."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from filling import labels
from filling.cells import Line, read_lines, table

PAGE = "label-errors.md"
FILE, WEAK = "label-errors.jsonl", "label-errors-weak.jsonl"
FURTHER, SMALL = "label-errors-further.jsonl", "label-errors-small.jsonl"
INDEPENDENT, EARLY = "label-errors-independent.jsonl", "label-errors-early.jsonl"
OPINION, AUDITS = "label-errors-opinion.jsonl", "label-errors-audits.jsonl"
FRESH, SETS = "label-errors-fresh.jsonl", "label-errors-sets.jsonl"
DENSE = "label-errors-dense.jsonl"
WHITENED, MIDDLING = "label-errors-whitened.jsonl", "label-errors-middling.jsonl"
NOISES = {
    **labels.NOISES,
    "instance-20": "instance-dependent 20%",
    "none": "none injected",
    **{f"{kind}-{rate}": f"{kind} {rate}%" for kind in ("symmetric", "class-dependent") for rate in (5, 10)},
    **{f"half-matrix-20-sparsity-{zeros}": f"half of matrix 20%, sparsity {zeros}" for zeros in ("0", "0.6")},
    "half-human-aggregate": "half of CIFAR-10N aggregate",
    "half-human-random1": "half of CIFAR-10N random 1",
}
SIGNALS = {"loss": "mean loss", "margin": "AUM", "prob_margin": "probability margin", "influence": "influence"}
NAME = re.compile(r"(?P<noise>.+)-(?P<kind>augmented|plain|8-epochs)-seed(?P<seed>\d+)")


def runs(kind: str, file: str = FILE, seeds: Sequence[int] = range(10)) -> dict[str, list[Line]]:
    """Lines by noise, in the order of the page and of their seeds."""
    found: dict[str, dict[int, Line]] = {noise: {} for noise in NOISES}
    for line in read_lines(file):
        match = NAME.fullmatch(line["name"])
        if match is not None and match["kind"] == kind and int(match["seed"]) in seeds:
            found[match["noise"]][int(match["seed"])] = line
    return {noise: [by_seed[seed] for seed in sorted(by_seed)] for noise, by_seed in found.items() if by_seed}


def noisy_of(by_noise: dict[str, list[Line]]) -> list[Line]:
    """The lines of all noises that wrong labels were injected by."""
    return [line for line in every(by_noise) if line["calibration"]["noise_rate_true"]]


def every(by_noise: dict[str, list[Line]]) -> list[Line]:
    """The lines of all noises."""
    return [line for lines in by_noise.values() for line in lines]


def several(values: Sequence[float | None], digits: int = 1, scale: float = 100) -> str:
    """One value per seed."""
    return " / ".join("–" if value is None else f"{scale * value:.{digits}f}" for value in values)


def best_single(lines: Sequence[Line]) -> str:
    """AUPR of the best single signal of each seed, and which it is."""
    names = list(dict.fromkeys(SIGNALS[line["best_single"]["name"]] for line in lines))
    return f"{several([line['best_single']['aupr'] for line in lines])} ({', '.join(names)})"


def ranking() -> str:
    """Quality of the order, with augmentation."""
    rows = []
    for noise, lines in runs("augmented").items():
        if noise == "none":
            continue
        own = [line["methods"]["label_errors"] for line in lines]
        rows.append(
            [
                NOISES[noise],
                f"**{several([found['aupr'] for found in own])}**",
                best_single(lines),
                several([found["p_at_1"] for found in own]),
                several([line["calibration"]["suggested_right"] for line in lines]),
                several([line["found_at_share"] for line in lines], digits=0),
            ]
        )
    return table(["noise", "**AUPR**", "best single signal", "P@1%", "suggested right", "found at"], rows)


def memorised() -> str:
    """The same for networks that have memorised."""
    rows = [
        [
            NOISES[noise],
            several([line["methods"]["label_errors"]["aupr"] for line in lines]),
            best_single(lines),
            several([line["methods"]["label_errors"]["p_at_1"] for line in lines]),
            *(cell for line in lines for cell in changed(line)),
        ]
        for noise, lines in runs("plain").items()
    ]
    return table(["noise", "AUPR", "best single signal", "P@1%", *CHANGED], rows)


CHANGED = ["ECE", "noise rate, %", "really", "FDR (selected)"]


def changed(line: Line) -> list[str]:
    """What one run stated before the last change and states now."""
    old, now = line["before"], said(line["calibration"])
    then = [f"{old['expected_calibration_error']:.3f}", f"{100 * old['noise_rate']:.1f}", "", _discoveries(old, 3)]
    return [f"{before} → {cell}" if before else cell for before, cell in zip(then, now, strict=True)]


def said(c: dict[str, Any]) -> list[str]:
    """What one run states, and what is so."""
    return [
        f"{c['expected_calibration_error']:.3f}",
        f"{100 * c['noise_rate']:.1f} ({100 * c['noise_rate_low']:.0f} to {100 * c['noise_rate_high']:.0f})",
        f"{100 * c['noise_rate_true']:.1f}",
        _discoveries(c, 3),
    ]


def further() -> str:
    """Noises that nothing was chosen on."""
    return unseen(runs("augmented", FURTHER))


def independent() -> str:
    """Weaker noise, with a seed that nothing was chosen on before naming was."""
    return unseen(runs("augmented", INDEPENDENT, SEEN))


def independent_again() -> str:
    """The same with a seed that nothing was chosen on at all."""
    return unseen(runs("augmented", INDEPENDENT, NEW))


def independent_memorised() -> str:
    """The same for networks that have memorised."""
    return unseen(runs("plain", INDEPENDENT))


def fresh() -> str:
    """Runs that were not looked at before limits by class were fixed; the list without limits where that differs."""
    rows = []
    for line in read_lines(FRESH):
        match, c = NAME.fullmatch(line["name"]), line["calibration"]
        assert match is not None
        *stated, found = said(c)
        found = f"{_discoveries(line['before'], 3)} → {found}" if "before" in line else found
        order = ["–", "–"]
        if "methods" in line:
            order = [f"**{several([line['methods']['label_errors']['aupr']])}**", best_single([line])]
        first = f"{top_100([c], 'expected')} ({top_100([c], 'real')})"
        noise = f"{NOISES[match['noise']]}, seed {match['seed']}"
        rows.append([noise, str(line["trained_with"]["settings"]["epochs"]), *order, *stated, found, first])
    return table(["noise", "epochs", "**AUPR**", "best single signal", *CHANGED, "top 100, %"], rows)


def sets() -> str:
    """Other images on a CPU, without limits by class and with them; nothing was chosen on them."""
    return _small(read_lines(SETS))


def whitened() -> str:
    """The same audits with a first convolution that is trained and with one that is fitted to the images."""
    rows = []
    for line in read_lines(WHITENED):
        both = line["resnet7"], line["resnet7-whitened"]
        real = f"{100 * both[1]['calibration']['noise_rate_true']:.1f}"
        rows.append(
            [
                line["about"]["images"],
                line["about"]["noise"],
                " → ".join(f"{100 * found['agreement']:.0f}" for found in both),
                " → ".join("–" if found["aupr"] is None else f"{100 * found['aupr']:.1f}" for found in both),
                " → ".join(f"{found['calibration']['expected_calibration_error']:.3f}" for found in both),
                " → ".join(f"{100 * found['calibration']['noise_rate']:.1f}" for found in both) + f" ({real})",
                " → ".join(_discoveries(found["calibration"]) for found in both),
            ]
        )
    head = ["images", "noise", "agreement, %", "AUPR", "ECE", "noise rate, % (really)", "FDR (selected)"]
    return table(head, rows)


def middling(model: str, file: str = MIDDLING) -> str:
    """Audits with one network, before the changes for models of middling competence and tiny sets, and with them."""
    rows = []
    for line in (line for line in read_lines(file) if line["about"]["model"] == model):
        about, aupr = line["about"], "–" if line["aupr"] is None else several([line["aupr"]])
        rows.append(
            [about["images"], about["noise"], str(line["seed"]), several([line["agreement"]]), aupr, *changed(line)]
        )
    return table(["images", "noise", "seed", "agreement, %", "AUPR", *CHANGED], rows)


def dense() -> str:
    """Matrices of 40% that are ranked well, before sure classes and with them."""
    lines = [line for line in read_lines(DENSE) if line["about"]["noise"].startswith("matrix 40%")]
    return _small([line for line in lines if line["aupr"] >= WELL])


def alone() -> str:
    """Audits under noise without structure, before it was counted by decoys alone, and with that."""
    sets = {"digits": "8×8 digits", "mnist": "MNIST", "svhn": "SVHN", "cifar": "CIFAR-10"}
    parts = {"seen": "no", "checked": "yes"}
    rows = []
    for line in read_lines("label-errors-alone.jsonl"):
        used = line["trained_with"]["settings"]
        images = f"{next(title for start, title in sets.items() if line['name'].startswith(start))}, {used['size']:,}"
        noise = "none" if used["noise"] == "none" else f"symmetric {100 * used['rate']:.0f}%"
        rows.append([images, noise, str(used["seed"]), parts[line["part"]], *changed(line)])
    return table(["images", "noise", "seed", "trained after the change", *CHANGED], rows)


WELL = 0.97
"""AUPR from which a list that is far too short is a fault of the calibration alone."""
SEEN, NEW = (3, 4), (5,)
"""Seeds of weaker noise in view of which naming was chosen, and that of runs that were trained afterwards."""


def unseen(by_noise: dict[str, list[Line]]) -> str:
    """One line per noise: its ranking, and what is stated against what is so; the list before naming too."""
    rows = []
    for noise, lines in by_noise.items():
        for line in lines:
            c, own = line["calibration"], f"**{several([line['methods']['label_errors']['aupr']])}**"
            *stated, found = said(c)
            found = f"{_discoveries(without_naming(line), 3)} → {found}" if "without_naming" in line else found
            first = f"{top_100([c], 'expected')} ({top_100([c], 'real')})"
            rows.append([NOISES[noise], own, best_single([line]), *stated, found, first])
    return table(["noise", "**AUPR**", "best single signal", *CHANGED, "top 100, %"], rows)


def without_naming(line: Line) -> dict[str, Any]:
    """What a run stated before decoys were counted by naming; the same where that changed nothing."""
    found: dict[str, Any] = line.get("without_naming", line["calibration"])
    return found


def opinion() -> str:
    """Right labels in the lists that people contest: some may be wrong labels of CIFAR-10 itself."""
    rows = []
    for line in read_lines(OPINION):
        found, match = line["opinion"], NAME.fullmatch(line["name"])
        assert match is not None
        selected, right = found["selected"], found["right"]
        shares = [f"{(right - found[name]) / selected:.3f}" if selected else "–" for name in ("agreed", "contested")]
        rate = f"{right / selected:.3f}" if selected else "–"
        noise = f"{NOISES[match['noise']]}, seed {match['seed']}"
        rows.append([noise, str(selected), str(right), str(found["agreed"]), str(found["contested"]), rate, *shares])
    head = ["noise", "selected", "right", "people suggest the same", "contested", "FDR", "without the same"]
    return table([*head, "without contested"], rows)


def audits() -> str:
    """Audits of Fashion-MNIST, without limits by class and with them."""
    rows = []
    for line in read_lines(AUDITS):
        c = line["calibration"]
        rows.append(
            [
                line["about"]["images"],
                line["about"]["noise"],
                f"{line['steps'] // line['plan']['steps_per_epoch']}",
                several([line["aupr"]]),
                *changed(line),
                f"{top_100([c], 'expected')} ({top_100([c], 'real')})",
                several([c["suggested_right"]], digits=0),
                f"{line['seconds'] / 60:.1f}",
            ]
        )
    head = ["images", "noise", "epochs", "AUPR", *CHANGED, "top 100, %", "suggested right, %", "minutes"]
    return table(head, rows)


def checks() -> str:
    """How often the aims are met where things were chosen, and where nothing was."""
    noisy = noisy_of(runs("augmented"))
    others = every(runs("augmented", FURTHER))
    heavy = [line for line in others if line["name"].startswith("matrix-70")]
    groups = {
        "the tables above": noisy,
        "weaker noise, seed 4": every(runs("augmented", INDEPENDENT, SEEN)),
        "weaker noise, seed 5": noisy_of(runs("augmented", INDEPENDENT, NEW)),
        "other seeds, 20 epochs": noisy_of(runs("augmented", FRESH)),
        "other seeds, 8 epochs": noisy_of(runs("8-epochs", FRESH)),
        "other noises up to 40%, seed 3": [line for line in others if line not in heavy],
        "matrices with 70%, seed 3": heavy,
        "memorised, above": every(runs("plain")),
        "memorised, other noises": every(runs("plain", INDEPENDENT)),
    }
    rows = []
    for title, lines in groups.items():
        real = [line["calibration"] for line in lines]
        both = _met([c | without_naming(line) for c, line in zip(real, lines, strict=True)]), _met(real)
        cells = [new if old == new else f"{old} → {new}" for old, new in zip(*both, strict=True)]
        rows.append([title, str(len(lines)), *cells])
    head = ["runs", "", "ECE at most 0.05", "rate within 2 points", "interval holds", "FDR 0.05 to 0.15", "FDR"]
    return table([*head, "top 100 within 3 points"], rows)


def _met(found: Sequence[dict[str, Any]]) -> list[str]:
    rates = sorted(c["false_discovery_rate"] for c in found if c["selected"])
    return [
        str(sum(c["expected_calibration_error"] <= 0.05 for c in found)),
        str(sum(abs(c["noise_rate"] - c["noise_rate_true"]) <= 0.02 for c in found)),
        str(sum(map(holds, found))),
        str(sum(0.05 <= rate <= TOO_MANY for rate in rates)),
        f"{rates[0]:.3f} to {rates[-1]:.3f}, mean {statistics.mean(rates):.3f}",
        str(sum(abs(c["top_100_expected"] - c["top_100_real"]) <= 0.03 for c in found)),
    ]


def early() -> str:
    """Models that have learned next to nothing."""
    rows = []
    for line in sorted(read_lines(EARLY), key=lambda line: line["agreement"]):
        about, old, new = line["about"], line["before"], line["calibration"]
        rows.append(
            [
                about["images"],
                about["noise"],
                about["training"],
                f"{100 * line['agreement']:.0f} ({100 * about['guess']:.0f})",
                *(
                    f"{100 * c['noise_rate']:.0f} ({100 * c['noise_rate_low']:.0f} to {100 * c['noise_rate_high']:.0f})"
                    for c in (old, new)
                ),
                f"{100 * new['noise_rate_true']:.0f}",
                _discoveries(new),
            ]
        )
    head = ["images", "noise", "training", "agreement (of a guess), %", "rate, before", "rate, now", "really"]
    return table([*head, "FDR (selected)"], rows)


def small() -> str:
    """Small networks and sets on a CPU, nothing chosen on them either."""
    return _small(read_lines(SMALL))


def _small(lines: Sequence[Line]) -> str:
    rows = []
    for line in lines:
        about, aupr = line["about"], "–" if line["aupr"] is None else several([line["aupr"]])
        rows.append([about["images"], about["noise"], about["training"], aupr, *changed(line)])
    return table(["images", "noise", "training", "AUPR", *CHANGED], rows)


def calibration() -> str:
    """What is stated against what is so, with decoys and without."""
    rows = []
    for noise, lines in runs("augmented").items():
        stated = [line["calibration"] for line in lines]
        alone = [line["calibration_without_decoys"] for line in lines]
        rows.append(
            [
                NOISES[noise],
                several([c["expected_calibration_error"] for c in stated], digits=3, scale=1),
                f"{several([c['noise_rate'] for c in stated])} ({100 * stated[0]['noise_rate_true']:.1f})",
                false_discoveries(stated, noise == "none"),
                f"{top_100(stated, 'expected')} ({top_100(stated, 'real')})",
                several([c["noise_rate"] for c in alone]),
                false_discoveries(alone, noise == "none"),
            ]
        )
    head = ["noise", "ECE", "noise rate, %", "FDR", "top 100, %", "noise rate, no decoys", "FDR, no decoys"]
    return table(head, rows)


def top_100(stated: Sequence[dict[str, Any]], which: str) -> str:
    """Precision of the first hundred, `expected` or `real`."""
    return several([c[f"top_100_{which}"] for c in stated], digits=0)


def false_discoveries(stated: Sequence[dict[str, Any]], clean: bool) -> str:
    """FDR of the selection, or how many were selected where nothing is wrong."""
    if clean:
        return " / ".join(str(c["selected"]) for c in stated) + " selected"
    return several([c["false_discovery_rate"] for c in stated], digits=3, scale=1)


KINDS = {"sym": "symmetric", "cd": "class-dependent", "mat": "matrix", "human": "CIFAR-10N", "none": "none injected"}
DATA = {"cifar10": "CIFAR-10", "cifar20": "CIFAR-100, 20 classes", "cifar100": "CIFAR-100", "dtd": "textures"}
RUN = re.compile(r"(?P<data>\w+)-(?P<size>\d+)-(?P<noise>[a-z]+)(?P<rate>\d*)-(?P<model>\w+)-(?P<seed>\d+)")
LEAST_SELECTED, TOO_MANY = 30, 0.15


def weak_runs() -> list[tuple[re.Match[str], Line]]:
    """Audits of small sets, with what their names say."""
    found = [(RUN.fullmatch(line["name"]), line) for line in read_lines(WEAK)]
    return [(match, line) for match, line in found if match is not None]


def holds(c: dict[str, Any]) -> bool:
    """Whether the interval of the noise rate has the real one in it."""
    return bool(c["noise_rate_low"] <= c["noise_rate_true"] <= c["noise_rate_high"])


def weak() -> str:
    """By kind of noise: how often the stated is off, before and after."""
    rows = []
    for kind, title in KINDS.items():
        both = [(line["before"], line["calibration"]) for match, line in weak_runs() if match["noise"] == kind]
        old, new = ([pair[i] for pair in both] for i in (0, 1))
        rows.append([title, str(len(both)), *(f"{a} → {b}" for a, b in zip(_counts(old), _counts(new), strict=True))])
    head = ["noise", "runs", "FDR above 0.15", "median FDR", "rate within 3 points", "interval holds", "ECE above 0.05"]
    return table(head, rows)


def _counts(stated: Sequence[dict[str, Any]]) -> list[str]:
    rates = [c["false_discovery_rate"] for c in stated if c["selected"] >= LEAST_SELECTED]
    return [
        f"{sum(rate > TOO_MANY for rate in rates)} of {len(rates)}",
        f"{statistics.median(rates):.2f}" if rates else "–",
        str(sum(abs(c["noise_rate"] - c["noise_rate_true"]) <= 0.03 for c in stated)),
        str(sum(map(holds, stated))),
        str(sum(c["expected_calibration_error"] > 0.05 for c in stated)),
    ]


def weak_each() -> str:
    """Every run, the model that knows least first."""
    rows = []
    for match, line in sorted(weak_runs(), key=lambda run: run[1]["agreement"]):
        old, new = line["before"], line["calibration"]
        rows.append(
            [
                f"{DATA.get(match['data'], match['data'].upper())}, {int(match['size']):,}",
                f"{KINDS[match['noise']]} {match['rate']}".strip() + f", seed {match['seed']}",
                "ResNet-7" if match["model"] == "resnet7" else "ResNet-9",
                f"{100 * line['agreement']:.0f}",
                "–" if line["aupr"] is None else f"{100 * line['aupr']:.1f}",
                f"{_discoveries(old)} → {_discoveries(new)}",
                f"{100 * old['noise_rate']:.0f} → {100 * new['noise_rate']:.0f}"
                f" ({100 * new['noise_rate_low']:.0f} to {100 * new['noise_rate_high']:.0f})",
                f"{100 * new['noise_rate_true']:.0f}",
            ]
        )
    head = ["images", "noise", "network", "agreement, %", "AUPR", "FDR (selected)", "noise rate, %", "really"]
    return table(head, rows)


def _discoveries(c: dict[str, Any], digits: int = 2) -> str:
    return f"{c['false_discovery_rate']:.{digits}f} ({c['selected']})" if c["selected"] else "none"


TABLES: dict[str, Callable[[], str]] = {
    "label-errors-ranking": ranking,
    "label-errors-memorised": memorised,
    "label-errors-calibration": calibration,
    "label-errors-further": further,
    "label-errors-independent": independent,
    "label-errors-independent-memorised": independent_memorised,
    "label-errors-independent-again": independent_again,
    "label-errors-opinion": opinion,
    "label-errors-audits": audits,
    "label-errors-fresh": fresh,
    "label-errors-sets": sets,
    "label-errors-dense": dense,
    "label-errors-alone": alone,
    "label-errors-whitened": whitened,
    "label-errors-middling": partial(middling, "resnet9"),
    "label-errors-blind": partial(middling, "resnet9", "label-errors-middling-blind.jsonl"),
    "label-errors-tiny": partial(middling, "resnet7-whitened"),
    "label-errors-checks": checks,
    "label-errors-early": early,
    "label-errors-small": small,
    "label-errors-weak": weak,
    "label-errors-weak-each": weak_each,
}
