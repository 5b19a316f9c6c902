"""Tables of the page about poisoned training examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log, sqrt
from statistics import mean, median, stdev
from typing import Any

from filling.cells import RESULTS, Line, marked, number, read_lines, table
from sgoif.bench.poisoning.attacks import naming
from sgoif.bench.poisoning.judge import OWN_RULE
from sgoif.bench.poisoning.registry import KNOWN, METHODS, UNKNOWN, in_order, title_of

PAGE = "poisoning.md"
TOLD = ("spectral", "spectral-along")
"""Methods that are told how many examples are poisoned: without an attack they cannot but remove nothing."""


class Results:
    """The lines of a result file by method and attack, in the order of their seeds."""

    def __init__(self, name: str) -> None:
        self._found: dict[tuple[str, str], list[Line]] = {}
        for line in sorted(read_lines(name), key=lambda line: line["seed"]):
            self._found.setdefault((line["method"], line["attack"]), []).append(line)

    def lines(self, method: str, attack: str) -> list[Line]:
        return self._found.get((method, attack), [])

    def methods(self, setting: str | None = None) -> list[str]:
        names = in_order(method for method, _ in self._found)
        knows = {KNOWN: True, UNKNOWN: False}
        return [name for name in names if setting is None or METHODS[name].knows_victims == knows[setting]]

    def attacks(self) -> list[str]:
        """As they are listed, no attack left out."""
        found = {attack for _, attack in self._found if attack != naming.NONE}
        kinds = list(naming.KINDS)
        return sorted(found, key=lambda attack: (kinds.index(naming.parse(attack)[0]), attack))

    def trials(self, attack: str) -> list[Line]:
        """One line of every seed; what they say about the attack is the same for all methods.

        Only lines of a method that was retrained say what is left without the poison, so those come first.
        """
        lines = [line for method in self.methods() for line in self.lines(method, attack)]
        lines.sort(key=lambda line: (line["seed"], line["without_poison"] is None))
        return list({line["seed"]: line for line in reversed(lines)}.values())[::-1]


def percent(lines: Sequence[Line], metric: str) -> list[float]:
    """A figure of these lines in percent."""
    return [100 * line["metrics"][metric] for line in lines if line["metrics"][metric] is not None]


def attacks(name: str) -> str:
    """How many examples each attack changes, how well it works, and what would be left without the poison."""
    results = Results(name)
    rows = []
    for attack in results.attacks():
        trials = results.trials(attack)
        rest = [line["without_poison"] for line in trials]
        rows.append(
            [
                naming.title_of(attack),
                str(len(trials)),
                number([line["poison"] for line in trials], spread=False, digits=0),
                number(_percents([line["before"] for line in trials], "attack_success")),
                number(_percents(rest, "attack_success")),
                number(_percents([line["before"] for line in trials], "accuracy")),
                number(_percents(rest, "accuracy")),
            ]
        )
    head = ["attack", "seeds", "poisoned", "attack success", "without the poison", "accuracy", "without the poison"]
    return table(head, rows)


def found(name: str, setting: str) -> str:
    """AUPR of every method of a setting under every attack."""
    results = Results(name)
    methods, attacks = results.methods(setting), results.attacks()
    columns = [marked([percent(results.lines(method, attack), "aupr") for method in methods]) for attack in attacks]
    rows = [[title_of(method), *cells] for method, *cells in zip(methods, *columns, strict=True)]
    return table(["method", *map(naming.title_of, attacks)], rows)


def removal(name: str) -> str:
    """What every method removes, and what that does to the attack and to accuracy."""
    results = Results(name)
    rows = []
    for method in results.methods():
        cells = []
        for attack in results.attacks():
            lines = [line for line in results.lines(method, attack) if line["metrics"]["success_after"] is not None]
            if not lines:
                cells.append("–")
                continue
            after, lost = percent(lines, "success_after"), percent(lines, "accuracy_lost")
            size, recall = [line["metrics"]["selected"] for line in lines], percent(lines, "recall")
            cells.append(
                f"{number(after, spread=False, digits=0)} ({number(lost, spread=False)};"
                f" {number(size, spread=False, digits=0)}, {number(recall, spread=False, digits=0)}%)"
            )
        if set(cells) != {"–"}:
            rows.append([title_of(method), *cells])
    return table(["method", *map(naming.title_of, results.attacks())], rows)


def alarms(name: str) -> str:
    """What methods with a rule of their own remove where there is nothing to find."""
    results = Results(name)
    rows = []
    for method in results.methods(UNKNOWN):
        lines = [line for line in results.lines(method, naming.NONE) if line["removed_by"] == OWN_RULE]
        if lines and method not in TOLD:
            counts = ", ".join(str(line["metrics"]["selected"]) for line in lines)
            rows.append([title_of(method), counts, str(lines[0]["examples"])])
    return table(["method", "called poison, by seed", "of"], rows)


def groups() -> str:
    """The group that stands furthest apart in every run, and how far it does by the other classes."""
    titles = {"cifar10": "CIFAR-10", "digits": "digits", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
    rows = []
    for line in read_lines("poisoning-groups.jsonl"):
        first, *rest = line["groups"]
        others = [group["separation"] for group in rest]
        logs = [log(value) for value in others]
        t = (log(first["separation"]) - mean(logs)) / stdev(logs) / sqrt(1 + 1 / len(logs))
        attack = "no poison" if line["attack"] == naming.NONE else naming.title_of(line["attack"])
        figures = [first["separation"], first["contrast"], first["separation"] / median(others), t]
        counts = [str(line["seed"]), str(first["members"]), str(first["poisoned_members"])]
        rows.append([f"{titles[line['set']]}, {attack}", *counts, *(number([value]) for value in figures)])
    head = ["run", "seed", "in the group", "poisoned", "separation", "contrast", "over the median of others", "t"]
    return table(head, rows)


def whole(name: str) -> str:
    """All tables of a result file, or that there is none yet."""
    if not (RESULTS / name).exists():
        return f"There is no `results/{name}` yet: these figures have still to be made.\n"
    parts = {
        "The attacks:": attacks(name),
        "AUPR, victims known:": found(name, KNOWN),
        "AUPR, nothing known:": found(name, UNKNOWN),
        "After removing it, as for MNIST:": removal(name),
        "False alarms:": alarms(name),
    }
    return "\n".join(f"{title}\n\n{text}" for title, text in parts.items() if text.count("\n") > 2)


def _percents(facts: Sequence[Mapping[str, Any] | None], name: str) -> list[float]:
    """A figure of those that have one, in percent."""
    return [100 * fact[name] for fact in facts if fact is not None and fact[name] is not None]


def _of_file(name: str) -> dict[str, Callable[[], str]]:
    """The tables of one result file."""
    stem = name.removesuffix(".jsonl")
    return {
        f"{stem}-attacks": lambda: attacks(name),
        f"{stem}-known": lambda: found(name, KNOWN),
        f"{stem}-unknown": lambda: found(name, UNKNOWN),
        f"{stem}-removal": lambda: removal(name),
        f"{stem}-alarms": lambda: alarms(name),
    }


TABLES: dict[str, Callable[[], str]] = {
    **_of_file("poisoning-mnist.jsonl"),
    **_of_file("poisoning-digits.jsonl"),
    "poisoning-cifar10": lambda: whole("poisoning-cifar10.jsonl"),
    "poisoning-groups": groups,
}
