"""Tables about second trainings and robust losses, of the page about training despite wrong labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product

from filling.cells import Line, number, read_lines, table
from filling.curriculum import DATA_SETS, FRANK_ON, NOISES, PLAIN, TWICE, TWICE_ROBUST, signed

AGAIN = {
    "answers": "labels, and answers at the end for what they give up (kept)",
    "weights": "labels, with the last weights",
    "names": "labels, and remembered answers for what they give up",
    "distil": "the same, and half of every label replaced by them",
    "drop": "labels that give up less than half, the others left out",
    "answers-alone": "answers at the end, no labels",
    "mixed-alone": "answers at the end and remembered ones, half of each, no labels",
    "bayes": "answers at the end, times what a label says by the noise rate",
}
"""What a second training learned from, as the result file calls it and as the page does."""
AGAIN_ON = {
    ("cifar10", "symmetric-30"): "symmetric 30%",
    ("cifar10", "symmetric-40"): "symmetric 40%, another seed",
    ("cifar10", "symmetric-50"): "symmetric 50%",
    ("cifar10", "human-random1"): "CIFAR-10N random1, 17%",
    ("cifar10", "class-dependent-30"): "class-dependent 30%",
}
ALONE = {
    "answers": AGAIN["answers"],
    "answers-half": "the same, and half of what they keep replaced by them",
    "answers-alone": "answers at the end, no labels",
    "names-alone": "remembered answers, no labels",
    "answers-sce": "labels, and answers at the end for what they give up, with SCE as the loss",
    "answers-alone-sce": "answers at the end, no labels, with SCE as the loss",
}
"""The same where labels count less or not at all."""
ALONE_ON = {
    ("mnist", "symmetric-40"): "MNIST, symmetric 40%",
    ("mnist", "class-dependent-20"): "MNIST, class-dependent 20%",
    ("mnist", "none"): "MNIST, no noise",
    ("digits", "symmetric-40"): "digits, symmetric 40%",
    ("digits", "class-dependent-20"): "digits, class-dependent 20%",
}
ROBUST = {
    "default": "weights alone",
    "every": "a robust loss, u = 1",
    "reverse": "u = 1, and w in its cross entropy",
    "root": "u = √w, and w in its cross entropy",
    "weights": "u = w",
    "steep-10": "u = w^e, e = 10 (1 − d) at most 1",
    "steep-5": "u = w^e, e = 5 (1 − d) at most 1",
    "kept": "the same, with the mean of w (kept)",
}
"""What labels count in the robust loss, as the result file calls it and as the page does."""
ROBUST_ON = {
    place: FRANK_ON[place]
    for place in (
        ("mnist", "symmetric-40"),
        ("digits", "symmetric-40"),
        ("cifar10", "symmetric-40"),
        ("cifar10", "human-aggregate"),
    )
}
SMALL_SEEDS = (0, 1, 2)
"""Those of the tables of MNIST and digits."""
ONCE = {
    PLAIN: "plain training",
    "sce": "SCE loss",
    "kept": "robust (kept)",
    "sce-first": "SCE in the warm-up, too",
    "warm-up-3": "`--warm-up 3`",
    "anchors-1000": "`--anchors 1000`",
    "joined-0.5": "`--joined 0.5`",
    "aimed": "last quarter: labels given up replaced by present answers",
    "aimed-sce": "the same, with SCE",
    "remembered": "last quarter: labels given up replaced by remembered answers",
    "weighed-end": "last quarter: weighed cross entropy",
    "weighed-half": "last quarter: half of it",
    "weighed-late": "last two epochs: weighed cross entropy",
    "elr": "early-learning regularisation for SCE, λ = 3",
    "elr-1": "early-learning regularisation for SCE, λ = 1",
    "sce-elr": "beside SCE, λ = 0.3",
}
"""What was tried to gain more in one training, as the result file calls it and as the page does."""
MNIST_OTHERS = {
    ("mlp", "symmetric-20", None): "symmetric 20%",
    ("mlp", "symmetric-60", None): "symmetric 60%",
    ("mlp", "matrix-40-sparsity-0.2", None): "matrix of 40%, a fifth zeros",
    ("mlp", "matrix-40-sparsity-0.6", None): "matrix of 40%, three fifths zeros",
    ("mlp", "instance-30", None): "by image, 30%",
    ("mlp", "symmetric-40", 50.0): "symmetric 40%, long tail",
    ("small-cnn", "symmetric-40", None): "symmetric 40%, convolutions, augmented, 4,000 images",
}
"""Networks, noises and tails on which the robust loss was tried once it was decided upon."""
CIFAR_OTHERS = {
    ("resnet9", "human-random1", None): "CIFAR-10N random1, 17%",
    ("resnet9", "symmetric-60", None): "symmetric 60%",
    ("resnet9", "instance-30", None): "by image, 30%",
}


def again(variants: Mapping[str, str], places: Mapping[tuple[str, str], str]) -> str:
    """What second trainings have above the first one of the same process."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for line in read_lines("curriculum-again.jsonl"):
        gain = 100 * (line["metrics"]["accuracy"] - line["metrics"]["first_accuracy"])
        found.setdefault((line["variant"], line["set"], line["noise"]), []).append(gain)
    rows = [
        [title, *(signed(found.get((variant, *place), [])) for place in places)] for variant, title in variants.items()
    ]
    return table(["what the second training learned from", *places.values()], rows)


def robust() -> str:
    """Accuracy after one training and after two, by what labels count in the robust loss."""
    found: dict[tuple[str, tuple[str, str]], list[tuple[float, float]]] = {}
    for line in read_lines("curriculum-robust.jsonl"):
        if line["set"] == "cifar10" or line["seed"] in SMALL_SEEDS:
            pair = line["metrics"]["first_accuracy"], line["metrics"]["accuracy"]
            found.setdefault((line["variant"], (line["set"], line["noise"])), []).append(pair)
    for (data, noise), (variant, method) in product(ROBUST_ON, (("default", TWICE), ("kept", TWICE_ROBUST))):
        if (variant, (data, noise)) not in found:
            found[variant, (data, noise)] = [
                (line["details"]["first_accuracy"], line["metrics"]["accuracy"])
                for line in read_lines(f"curriculum-{data}.jsonl")
                if (line["method"], line["noise"], line["recipe"]["tail"]) == (method, noise, None)
            ]
    rows = []
    for variant, title in ROBUST.items():
        pairs = [[pair[twice] for pair in found.get((variant, place), [])] for place in ROBUST_ON for twice in (0, 1)]
        rows.append([title, *(number([100 * value for value in values], digits=2) for values in pairs)])
    return table(["labels count", *_once_and_twice(ROBUST_ON.values())], rows)


def _once_and_twice(titles: Iterable[str]) -> list[str]:
    return [f"{title}, {times}" for title in titles for times in ("once", "twice")]


def once() -> str:
    """Accuracy after one training with something else in the place of the robust loss; seeds apart."""
    found: dict[tuple[str, str], list[Line]] = {}
    for line in read_lines("curriculum-robust-once.jsonl"):
        found.setdefault((line["variant"], line["noise"]), []).append(line)

    def cell(variant: str, noise: str) -> str:
        lines = sorted(found.get((variant, noise), []), key=lambda line: line["seed"])
        return ", ".join(f"{100 * line['metrics']['accuracy']:.2f}" for line in lines) or "–"

    places = {noise: NOISES[noise] for noise in ("symmetric-40", "human-aggregate", "class-dependent-20", "none")}
    rows = [[title, *(cell(variant, noise) for noise in places)] for variant, title in ONCE.items()]
    return table(["CIFAR-10", *places.values()], rows)


def others(data: str, places: Mapping[tuple[str, str, float | None], str], controls: Mapping[str, str]) -> str:
    """Other noises and networks: plain training where there is some; controls, ours and SCE once, and twice."""
    found: dict[tuple[tuple[str, str, float | None], str], list[Line]] = {}
    for line in read_lines(f"curriculum-{data}-others.jsonl"):
        place = line["recipe"]["model"], line["noise"], line["recipe"]["tail"]
        found.setdefault((place, line["method"]), []).append(line)
    methods = {**controls, TWICE_ROBUST: "robust", "sce-twice": "SCE loss"}
    plain = any(method == PLAIN for _, method in found)
    rows = []
    for place, title in places.items():
        values = [[line["metrics"]["accuracy"] for line in found[place, PLAIN]]] if plain else []
        for method in methods:
            lines = found.get((place, method), [])
            values.append([line["details"]["first_accuracy"] for line in lines])
            values.append([line["metrics"]["accuracy"] for line in lines])
        rows.append([title, *(number([100 * value for value in some], digits=2) for some in values)])
    head = [*(["plain training"] if plain else []), *_once_and_twice(methods.values())]
    return table([DATA_SETS[data], *head], rows)


TABLES: dict[str, Callable[[], str]] = {
    "curriculum-again": partial(again, AGAIN, AGAIN_ON),
    "curriculum-again-alone": partial(again, ALONE, ALONE_ON),
    "curriculum-robust": robust,
    "curriculum-robust-once": once,
    "curriculum-mnist-others": partial(others, "mnist", MNIST_OTHERS, {TWICE: "weights alone"}),
    "curriculum-cifar10-others": partial(others, "cifar10", CIFAR_OTHERS, {}),
}
