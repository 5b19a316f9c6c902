"""Tables of the page about training despite wrong labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from statistics import mean

from filling.cells import Line, marked, number, read_lines, table
from sgoif.bench.curriculum.registry import METHODS, in_order, title_of

PAGE = "curriculum.md"
NOISES = {
    "class-dependent-20": "class-dependent 20%",
    "symmetric-40": "symmetric 40%",
    "human-aggregate": "CIFAR-10N aggregate, 9%",
    "none": "no noise",
}
OURS, TWICE, PLAIN = "curriculum", "curriculum-twice", "plain"
OURS_ROBUST, TWICE_ROBUST = f"{OURS}-robust", f"{TWICE}-robust"
GAINS = {OURS: "curriculum", OURS_ROBUST: "robust", TWICE: "trained twice", TWICE_ROBUST: "robust, twice"}
"""Ours whose gain over plain training is shown, and what the tables call them."""
SMALL_SETS, SMALL_NOISES = {"mnist": "MNIST", "digits": "digits"}, ("symmetric-40", "class-dependent-20")
SMALL_HEAD = [f"{title}, {NOISES[noise]}" for title in SMALL_SETS.values() for noise in SMALL_NOISES]
"""Data and noises on which settings and mistakes were looked at with three seeds."""
BRIEF = "CIFAR-10, symmetric 40%"
DATA_SETS = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "digits": "digits", "cifar10": "CIFAR-10"}
VARIANTS = {
    **{name: title_of(name) for name in ("curriculum", "told", "told-wrong", "told-right")},
    "rate-alone": "present answer and noise rate, no judgement",
    "half-judged-rate": "present answer and half of the judgement",
    "judged-rate": "present answer and judgement",
    "posterior-targets": "present answer and judgement, as targets",
    "weighed-sce": "weights times SCE, from the first step on",
    "weighed-sce-after": "weights times SCE, once weights have moved",
    "weighed-gce-after": "weights times GCE (q = 0.7), once weights have moved",
}
"""What was tried in place of the weights, as the result file calls it and as the page does."""
TRIES = {
    "default": "default",
    "goes-on": "judging goes on",
    "remembered-targets": "remembered answers as targets",
    "goes-on-targets": "both",
    "goes-on-targets-early": "both, hold-out joins for the last 40%",
}
TRIED_ON = {"symmetric-30": "symmetric 30%", "symmetric-50": "symmetric 50%"}
STRUCTURES = {"default": "the last batches", "both": "batches and memory, the smaller (default)"}
"""Where the structure of the noise is read off, as the result file calls it and as the page does."""
TRIES_FILE, NAMES_FILE, TEACHER_FILE = (f"curriculum-{name}.jsonl" for name in ("cifar10-tries", "names", "teacher"))
FRANK = {
    "frank": "judging goes on, d",
    "frank-faster": "also, at once: speed 1/3 + 2/3 d, fade 0.9 − 0.1 d",
    "frank-forgetful": "also, at once: speed 1/3 + 2/3 d, fade 0.9 − 0.4 d",
    "frank-present": "also, at once, and the present answer counts d/2",
    "frank-surest": "also the noise rate of the surest half of the hold-out",
    "frank-vote": "also (1 + d) times as much given up",
}
"""What was done as far as the network speaks its mind, as the result file calls it and as the page does."""
FRANK_ON = {
    ("mnist", "symmetric-40"): "MNIST, symmetric 40%",
    ("fashion-mnist", "symmetric-40"): "Fashion-MNIST, symmetric 40%",
    ("digits", "symmetric-40"): "digits, symmetric 40%",
    ("cifar10", "symmetric-30"): "CIFAR-10, symmetric 30%",
    ("cifar10", "symmetric-50"): "CIFAR-10, symmetric 50%",
    ("cifar10", "human-random1"): "CIFAR-10N random1, 17%",
    ("cifar10", "symmetric-40"): "CIFAR-10, symmetric 40%",
    ("cifar10", "human-aggregate"): "CIFAR-10N aggregate, 9%",
}
NAMES = {
    "names": "names once the hold-out has joined",
    "names-early": "names from the first weights on",
    "forgetful": "speed 1/3 + 2/3 d, fade 0.9 − 0.4 d",
    "names-forgetful": "the same, and names once the hold-out has joined",
    "names-early-forgetful": "the same, and names from the first weights on",
}
"""How what is given up was lent to names, as the result file calls it and as the page does."""
CLAIMED = ("symmetric-40", "human-aggregate")
"""Noises of CIFAR-10 that the page makes claims about; names were tried on others."""
NAMES_ON = {place: title for place, title in FRANK_ON.items() if place[0] != "cifar10" or place[1] not in CLAIMED} | {
    ("cifar10", "class-dependent-30"): "CIFAR-10, class-dependent 30%"
}
TEACHER = {
    "teacher": "a teacher's answers",
    "forgetful-margins": "margins for influence, speed 1/3 + 2/3 d, fade 0.9 − 0.4 d",
    "teacher-forgetful-margins": "the same, and a teacher's answers",
    "fading-margins": "margins for influence, fade 0.9 − 0.4 d",
}
"""By whose answers labels were judged, and how, as the result file calls it and as the page does."""
TAUGHT = {
    "own": "own",
    "teacher": "teacher's",
    "own_last_epoch": "own of the last epoch",
    "teacher_last_epoch": "teacher's of the last epoch",
}
"""Whose logit margins wrong labels were looked for by, in all epochs so far or in the last one."""
METRICS = {"accuracy": "accuracy", "wrong_weight": "wrong labels weigh"}
JUDGED_AT = (5.0, 7.0, 9.0, 11.0, 13.0, 15.0)
"""Epochs after which a judgement is shown."""


class Results:
    """The lines of a result file with one tail, by method and noise, in the order of their seeds; defaults only."""

    def __init__(self, name: str, tail: float | None) -> None:
        self._found: dict[tuple[str, str], list[Line]] = {}
        for line in sorted(read_lines(name), key=lambda line: line["seed"]):
            if line["recipe"]["tail"] == tail and "curriculum" not in line["recipe"]:
                self._found.setdefault((line["method"], line["noise"]), []).append(line)
        self.methods = in_order({method for method, _ in self._found})
        self.noises = [noise for noise in NOISES if any(noise == found for _, found in self._found)]

    def values(self, method: str, noise: str, metric: str) -> list[float]:
        found = (line["metrics"][metric] for line in self._found.get((method, noise), []))
        return [100 * value for value in found if value is not None]

    def gains(self, ours_by: str, noise: str, metric: str) -> list[float]:
        """What one of our methods has above plain training, seed by seed."""
        ours, plain = (
            {line["seed"]: 100 * line["metrics"][metric] for line in self._found.get((method, noise), [])}
            for method in (ours_by, PLAIN)
        )
        return [ours[seed] - plain[seed] for seed in ours if seed in plain]

    def seeds(self, method: str) -> str:
        counts = {len(self._found.get((method, noise), [])) for noise in self.noises}
        return "–".join(map(str, sorted({min(counts), max(counts)})))

    def trainings(self, method: str) -> str:
        """The same for every noise, but for the ceiling, which trains on what is right."""
        if METHODS[method].knows_truth:
            return "–"
        return f"{next(lines[0]['trainings'] for (name, _), lines in self._found.items() if name == method):.2f}"


def defaults_of(data: str) -> Results:
    """Those that variants are compared with: from before the ranking of labels changed, as the variants are."""
    return Results(f"curriculum-{data}-ranking.jsonl", None)


def compared(name: str, tail: float | None, metric: str) -> str:
    """A row for every method, a column for every noise; the ceiling is not compared."""
    results = Results(name, tail)
    rivals = [method for method in results.methods if not METHODS[method].knows_truth]
    columns = {
        noise: dict(
            zip(rivals, marked([results.values(method, noise, metric) for method in rivals], digits=2), strict=True)
        )
        for noise in results.noises
    }

    def cell(method: str, noise: str) -> str:
        return columns[noise].get(method) or number(results.values(method, noise, metric), digits=2)

    rows = [
        [
            title_of(method),
            *(cell(method, noise) for noise in results.noises),
            results.trainings(method),
            results.seeds(method),
        ]
        for method in results.methods
    ]
    for method, title in GAINS.items():
        if method in results.methods:
            gains = [results.gains(method, noise, metric) for noise in results.noises]
            cells = [number(values, digits=2).replace("-", "−") for values in gains]
            rows.append([f"{title} − plain, seed by seed", *cells, "", ""])
    return table(["method", *(NOISES[noise] for noise in results.noises), "trainings", "seeds"], rows)


def weight(name: str) -> str:
    """Share of the total weight that wrong labels have in the last epoch, of the methods that give weights."""
    results = Results(name, None)
    noises = [noise for noise in results.noises if noise != "none"]
    rows = [
        [title_of(method), *(number(results.values(method, noise, "wrong_weight")) for noise in noises)]
        for method in results.methods
        if not METHODS[method].knows_truth and any(results.values(method, noise, "wrong_weight") for noise in noises)
    ]
    return table(["% of the weight", *(NOISES[noise] for noise in noises)], rows)


def memory(metric: str) -> str:
    """The curriculum by what it remembers: three seeds on small data, what there is on CIFAR-10."""
    before, default, head = "by the loss on held-out data (before)", "`--fade 0.9` (default)", [*SMALL_HEAD, BRIEF]
    rows: dict[str, dict[str, list[float]]] = {before: {}, "`--fade 0.7`": {}, default: {}, "`--fade 1`": {}}
    for data, title in DATA_SETS.items():
        noises = [noise for noise in SMALL_NOISES if f"{title}, {NOISES[noise]}" in head]
        for noise in noises:
            for row, found in (
                (before, Results(f"curriculum-{data}-ledger.jsonl", None)),
                (default, defaults_of(data)),
            ):
                rows[row][f"{title}, {NOISES[noise]}"] = found.values(OURS, noise, metric)
        for line in read_lines(f"curriculum-{data}-memory.jsonl"):
            if line["noise"] in noises:
                cells = rows.setdefault(_asked(line), {})
                cells.setdefault(f"{title}, {NOISES[line['noise']]}", []).append(100 * line["metrics"][metric])
    body = [[row, *(number(found.get(column, []), digits=2) for column in head)] for row, found in rows.items()]
    return table(["how epochs count", *head], body)


def quicker() -> str:
    """What was tried on all small data sets has above the defaults, seed by seed."""
    tried: dict[str, list[Line]] = {}
    for data in DATA_SETS:
        for line in read_lines(f"curriculum-{data}-memory.jsonl"):
            tried.setdefault(_asked(line), []).append(line)
    tried["(all of the way at the end)"] = [
        line for line in read_lines("curriculum-final.jsonl") if line["recipe"]["tail"] is None
    ]
    rows = []
    for what, lines in tried.items():
        gains = {data: _gained([line for line in lines if line["set"] == data], data) for data in DATA_SETS}
        small = [gains[data] for data in DATA_SETS if data != "cifar10"]
        if not all(small):
            continue
        for data, found in gains.items():
            if found:
                rows.append([what, DATA_SETS[data], *(signed(found.get(noise, [])) for noise in NOISES)])
        means = [[mean(found[noise]) for found in small if noise in found] for noise in NOISES]
        rows.append([what, "mean without CIFAR-10", *(signed(values, spread=False) for values in means)])
    return table(["changed", "data", *NOISES.values()], rows)


def _gained(lines: list[Line], data: str) -> dict[str, list[float]]:
    """By noise, what these lines have above the curriculum with its defaults."""
    defaults, found = defaults_of(data), dict[str, list[float]]()
    for line in lines:
        default = defaults.values(OURS, line["noise"], "accuracy")[line["seed"]]
        found.setdefault(line["noise"], []).append(100 * line["metrics"]["accuracy"] - default)
    return found


def signed(gains: list[float], spread: bool = True) -> str:
    """A difference with its sign."""
    text = number(gains, spread=spread, digits=2)
    return text.replace("-", "−") if not gains or mean(gains) < 0 else f"+{text}"


def settings() -> str:
    """Accuracy of the curriculum with other settings than its defaults, which are the first row; before its memory."""
    found: dict[str, dict[tuple[str, str], list[float]]] = {"(defaults)": {}}
    for data in SMALL_SETS:
        defaults = Results(f"curriculum-{data}-ledger.jsonl", None)
        for noise in SMALL_NOISES:
            found["(defaults)"][data, noise] = defaults.values(OURS, noise, "accuracy")
        for line in read_lines(f"curriculum-{data}-settings.jsonl"):
            if line["recipe"].get("curriculum"):
                cells = found.setdefault(_asked(line), {})
                cells.setdefault((data, line["noise"]), []).append(100 * line["metrics"]["accuracy"])
    rows = [
        [asked, *(number(cells.get((data, noise), []), digits=2) for data in SMALL_SETS for noise in SMALL_NOISES)]
        for asked, cells in found.items()
    ]
    return table(["added to the command", *SMALL_HEAD], rows)


def _asked(line: Line) -> str:
    """The settings of a line as they are added to the command."""
    own = sorted(line["recipe"]["curriculum"].items())
    return "`" + " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in own) + "`"


def told() -> str:
    """What the mistakes of the weights cost: ours, and the same without some of them or all; before its memory."""
    rows: dict[str, list[str]] = {}
    for data in SMALL_SETS:
        plain, ours, without = (Results(f"curriculum-{data}{end}.jsonl", None) for end in ("", "-ledger", "-told"))
        for noise in SMALL_NOISES:
            for method, results in [(PLAIN, plain), (OURS, ours), *((name, without) for name in without.methods)]:
                cell = number(results.values(method, noise, "accuracy"), digits=2)
                rows.setdefault(title_of(method), []).append(cell)
    return table(["weights", *SMALL_HEAD], [[title, *cells] for title, cells in rows.items()])


def limits() -> str:
    """Variants of the curriculum under symmetric noise, one seed each."""
    sets = {"cifar10": "CIFAR-10", "mnist": "MNIST"}
    lines = read_lines("curriculum-limits.jsonl")
    found = {(line["variant"], line["set"]): [100 * line["metrics"]["accuracy"]] for line in lines}
    rows = [
        [title, *(number(found.get((variant, data), []), digits=2) for data in sets)]
        for variant, title in VARIANTS.items()
    ]
    return table(["symmetric 40%, first seed", *sets.values()], rows)


def tries() -> str:
    """Accuracy and what wrong labels weigh in the last epoch, one run each, on noises that no claim is about."""
    lines = {(line["variant"], line["noise"]): line["metrics"] for line in read_lines(TRIES_FILE)}
    rows = [
        [title, *(_figures(lines.get((variant, noise)), metric) for metric in METRICS for noise in TRIED_ON)]
        for variant, title in TRIES.items()
    ]
    return table(
        ["curriculum", *(f"{name}, {noise}" for name in METRICS.values() for noise in TRIED_ON.values())], rows
    )


def gained(files: Sequence[str], variants: Mapping[str, str], places: Mapping[tuple[str, str], str]) -> str:
    """What variants of these files have above the default with the same seed, by data and noise."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for line in chain.from_iterable(map(read_lines, files)):
        by_seed = found.setdefault((line["variant"], line["set"], line["noise"]), {})
        by_seed[line["seed"]] = 100 * line["metrics"]["accuracy"]
    rows = []
    for variant, title in variants.items():
        cells = []
        for place in places:
            default, other = found["default", *place], found.get((variant, *place), {})
            cells.append(signed([value - default[seed] for seed, value in other.items() if seed in default]))
        rows.append([title, *cells])
    return table(["changed", *places.values()], rows)


def named() -> str:
    """How right names were on CIFAR-10, and how right it was thought they were, judgement by judgement."""
    figures = ("names_weigh", "right_estimated", "right", "kept_right_estimated", "kept_right")
    rows = []
    for line in read_lines(NAMES_FILE):
        if (line["variant"], line["set"]) != ("names-early", "cifar10") or line["noise"] not in TRIED_ON:
            continue
        for entry in line["details"]["judgements"]:
            if entry["epochs"] in JUDGED_AT:
                cells = [number([100 * entry["names"][figure]]) for figure in figures]
                rows.append([TRIED_ON[line["noise"]], f"{entry['epochs']:.0f}", *cells])
    head = ["noise", "after epoch", "names weigh", "right, estimated", "right", "kept labels right, estimated"]
    return table([*head, "kept labels right"], rows)


def taught() -> str:
    """How right the default and its teacher were about held-out examples, and which wrong labels each would miss."""
    rows = []
    for line in read_lines(TEACHER_FILE):
        if line["variant"] != "default":
            continue
        for entry in line["details"]["judgements"]:
            if entry["epochs"] in JUDGED_AT:
                right = (100 * entry[name] for name in ("held_out_right", "held_out_right_by_teacher"))
                missed = (entry["missed_by_logit_margin"][name] for name in TAUGHT)
                cells = [number([value]) for value in (*right, *missed)]
                rows.append([TRIED_ON[line["noise"]], f"{entry['epochs']:.0f}", *cells])
    head = ["noise", "after epoch", "held-out right", "held-out right, teacher"]
    return table([*head, *(f"missed, {title}" for title in TAUGHT.values())], rows)


def _figures(metrics: dict[str, float] | None, metric: str) -> str:
    return number([] if metrics is None else [100 * metrics[metric]], digits=2)


def judged() -> str:
    """How well the default told wrong labels from right ones, judgement by judgement."""
    rows = []
    for line in read_lines(TRIES_FILE):
        if line["variant"] != "default":
            continue
        for entry in line["details"]["judgements"]:
            if entry["epochs"] not in JUDGED_AT:
                continue
            right, wrong = entry["given_up_right_wrong"]
            shares = [100 * entry["noise_rate"], *(entry[name][1] for name in ("by_rank", "held_out_by_probability"))]
            cells = [number([value]) for value in [*shares, 100 * right, 100 * (1 - wrong)]]
            rows.append([TRIED_ON[line["noise"]], f"{entry['epochs']:.0f}", *cells])
    head = ["noise", "after epoch", "noise rate", "missed", "missed, held-out", "right labels lose", "wrong ones keep"]
    return table(head, rows)


def structure() -> str:
    """Digits by where the structure of the noise is read off: accuracy with every seed, and the mean."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for line in read_lines("curriculum-structure.jsonl"):
        if line["set"] == "digits" and line["recipe"]["tail"] is None:
            found.setdefault((line["noise"], line["variant"]), {})[line["seed"]] = 100 * line["metrics"]["accuracy"]
    rows = []
    for noise in SMALL_NOISES:
        seeds = sorted(set.intersection(*(set(found[noise, variant]) for variant in STRUCTURES)))
        for variant, title in STRUCTURES.items():
            values = [found[noise, variant][seed] for seed in seeds]
            rows.append([NOISES[noise], title, ", ".join(f"{value:.1f}" for value in values), number(values, digits=2)])
    return table(["digits", "structure read off", "by seed", "mean"], rows)


def _tables(data: str) -> dict[str, Callable[[], str]]:
    file = f"curriculum-{data}.jsonl"
    return {
        f"curriculum-{data}": partial(compared, file, None, "accuracy"),
        f"curriculum-{data}-weight": partial(weight, file),
        f"curriculum-{data}-tail": partial(compared, file, 50.0, "minority_recall"),
        f"curriculum-{data}-tail-accuracy": partial(compared, file, 50.0, "accuracy"),
    }


TABLES: dict[str, Callable[[], str]] = {name: make for data in DATA_SETS for name, make in _tables(data).items()} | {
    "curriculum-memory": partial(memory, "accuracy"),
    "curriculum-memory-weight": partial(memory, "wrong_weight"),
    "curriculum-quicker": quicker,
    "curriculum-settings": settings,
    "curriculum-told": told,
    "curriculum-limits": limits,
    "curriculum-tries": tries,
    "curriculum-judged": judged,
    "curriculum-frank": partial(gained, [TRIES_FILE, "curriculum-frank.jsonl"], FRANK, FRANK_ON),
    "curriculum-names": partial(gained, [NAMES_FILE], NAMES, NAMES_ON),
    "curriculum-named": named,
    "curriculum-teacher": partial(gained, [NAMES_FILE, TEACHER_FILE], TEACHER, NAMES_ON),
    "curriculum-taught": taught,
    "curriculum-structure": structure,
}
