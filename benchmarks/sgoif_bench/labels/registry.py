"""The methods of the comparison by name, and which of them can share one training.

A *family* is a set of methods whose outcomes can come from one training:

    ours        the label score and the influence it is made of, from a run that we watch
    ablations   the same run watched by monitors that each lack a part
    plain       whatever only looks at a run without us
    simifeat    the same, but looking takes longer than the run: both of its rankings

Every other method trains in its own way and is a family of its own. A shared training says nothing about the cost of
one method: for that, each runs alone (`--solo`); only ablations cannot.

Modules are imported when a method is first run, not before. A method of one's own is named as `package.module:function`
and called like the registered ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sgoif.core.user_code import own_function
from sgoif.errors import SettingError
from sgoif_bench import methods
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem

RIVALS = "sgoif_bench.labels.rivals"
OURS = "sgoif_bench.labels.ours"
Solve = Callable[[Problem, Say], Mapping[str, Outcome]]
"""Outcomes by the name of their method."""


@dataclass(frozen=True)
class Method:
    """A way to find wrong labels."""

    name: str
    run: str
    """`module:function` that is called with (problem, tell) and returns an `Outcome`; empty: only with its family."""
    title: str
    """As it stands in a table."""
    paper: str
    family: str = ""
    """Methods of one family can share a training; empty: a family of its own."""
    trains_robustly: bool = False
    """Whether the method is a way to train despite wrong labels, whose ranking comes with the trained network."""
    is_told: bool = False
    """Whether it is told the share of wrong labels and whether they depend on the class, as its authors knew them."""
    form: int = 1
    """Goes up when the method is changed, so that results of what it was before are not taken for its own."""

    def __post_init__(self) -> None:
        if not self.family:
            object.__setattr__(self, "family", self.name)


OWN_FAMILY, ABLATIONS, PLAIN, SIMIFEAT = "ours", "ablations", "plain", "simifeat"
FAMILIES: dict[str, str] = {
    OWN_FAMILY: f"{OURS}:family",
    ABLATIONS: f"{OURS}:ablations",
    PLAIN: "sgoif_bench.labels.plain:plain",
    SIMIFEAT: f"{RIVALS}.simifeat:family",
}
"""Families of several methods: `module:function` that is called with (problem, tell) and returns outcomes by name."""

_SGOIF = "SG-OIF: A Stability-Guided Online Influence Framework for Reliable Vision Data"
_TRACIN = "Pruthi et al., Estimating Training Data Influence by Tracing Gradient Descent, NeurIPS 2020"
_KOH = "Koh and Liang, Understanding Black-box Predictions via Influence Functions, ICML 2017"
_COTEACHING = (
    "Han et al., Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels, NeurIPS 2018"
)
_MENTORNET = "Jiang et al., MentorNet: Learning Data-Driven Curriculum for Very Deep Neural Networks, ICML 2018"
_FASTIF = (
    "Guo et al., FastIF: Scalable Influence Functions for Efficient Model Interpretation and Debugging, EMNLP 2021"
)
_SIMIFEAT = "Zhu et al., Detecting Corrupted Labels Without Training a Model to Predict, ICML 2022"

_ALL = (
    Method("sgoif", f"{OURS}:sgoif", "SG-OIF", _SGOIF, family=OWN_FAMILY),
    Method("influence", f"{OURS}:influence", "SG-OIF, influence only", _SGOIF, family=OWN_FAMILY),
    Method(
        "mixup",
        f"{RIVALS}.mixup:mixup",
        "Mixup",
        "Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018",
        trains_robustly=True,
    ),
    Method(
        "sce",
        f"{RIVALS}.sce:sce",
        "SCE loss",
        "Wang et al., Symmetric Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019",
        trains_robustly=True,
        form=2,  # log 0 as in the authors' code
    ),
    Method(
        "coteaching",
        f"{RIVALS}.coteaching:coteaching",
        "Co-teaching",
        _COTEACHING,
        trains_robustly=True,
    ),
    Method(
        "coteaching-known",
        f"{RIVALS}.coteaching:coteaching_known",
        "Co-teaching, noise rate known",
        _COTEACHING,
        trains_robustly=True,
        is_told=True,
    ),
    Method(
        "mentornet",
        f"{RIVALS}.mentornet:mentornet",
        "MentorNet",
        _MENTORNET,
        trains_robustly=True,
    ),
    Method(
        "mentornet-loss",
        f"{RIVALS}.mentornet:mentornet_loss",
        "MentorNet, student's loss",
        _MENTORNET,
        trains_robustly=True,
    ),
    Method(
        "mentornet-predefined",
        f"{RIVALS}.mentornet:mentornet_predefined",
        "MentorNet, predefined",
        _MENTORNET,
        trains_robustly=True,
    ),
    Method(
        "incv",
        f"{RIVALS}.incv:incv",
        "INCV",
        "Chen et al., Understanding and Utilizing Deep Neural Networks Trained with Noisy Labels, ICML 2019",
        trains_robustly=True,
        is_told=True,
        form=2,  # best epochs in early rounds, own rules for labels that depend on the class
    ),
    Method(
        "dividemix",
        f"{RIVALS}.dividemix:dividemix",
        "DivideMix",
        "Li et al., DivideMix: Learning with Noisy Labels as Semi-supervised Learning, ICLR 2020",
        trains_robustly=True,
        is_told=True,
    ),
    Method(
        "cores",
        f"{RIVALS}.cores:cores",
        "CORES²",
        "Cheng et al., Learning with Instance-Dependent Label Noise: A Sample Sieve Approach, ICLR 2021",
        trains_robustly=True,
    ),
    Method("tracin-self", f"{RIVALS}.tracin:tracin_self", "TracIn, self-influence", _TRACIN, family=PLAIN),
    Method("tracin-anchors", f"{RIVALS}.tracin:tracin_anchors", "TracIn on anchors", _TRACIN),
    Method("tracin-voices", f"{RIVALS}.tracin:tracin_voices", "TracIn on anchors, one voice each", _TRACIN),
    Method("fastif", f"{RIVALS}.fastif:fastif", "FastIF", _FASTIF),
    Method("fastif-sum", f"{RIVALS}.fastif:fastif_sum", "FastIF, plain sum", _FASTIF),
    Method(
        "confident-learning",
        f"{RIVALS}.confident_learning:confident_learning",
        "Confident Learning",
        "Northcutt et al., Confident Learning: Estimating Uncertainty in Dataset Labels, JAIR 2021",
    ),
    Method(
        "loss",
        f"{RIVALS}.watched:mean_loss",
        "mean loss",
        "Huang et al., O2U-Net: A Simple Noisy Label Detection Approach for Deep Neural Networks, ICCV 2019",
        family=PLAIN,
    ),
    Method(
        "aum",
        f"{RIVALS}.watched:aum",
        "AUM",
        "Pleiss et al., Identifying Mislabeled Data using the Area Under the Margin Ranking, NeurIPS 2020",
        family=PLAIN,
    ),
    Method(
        "probability-margin",
        f"{RIVALS}.watched:probability_margin",
        "probability margin",
        "Kuan and Mueller, Model-agnostic label quality scoring to detect real-world label errors, 2022",
        family=PLAIN,
    ),
    Method(
        "forgetting",
        f"{RIVALS}.forgetting:forgetting",
        "forgetting events",
        "Toneva et al., An Empirical Study of Example Forgetting during Deep Neural Network Learning, ICLR 2019",
        family=PLAIN,
    ),
    Method(
        "data-maps",
        f"{RIVALS}.data_maps:data_maps",
        "data maps",
        "Swayamdipta et al., Dataset Cartography: Mapping and Diagnosing Datasets with Training Dynamics, EMNLP 2020",
        family=PLAIN,
    ),
    Method("self-influence", f"{RIVALS}.self_influence:self_influence", "self-influence", _KOH, family=PLAIN),
    Method(
        "knn",
        f"{RIVALS}.knn:knn",
        "nearest neighbours",
        _SIMIFEAT,
        family=PLAIN,
    ),
    Method("simifeat-vote", f"{RIVALS}.simifeat:simifeat_vote", "SimiFeat, vote", _SIMIFEAT, family=SIMIFEAT),
    Method("simifeat-rank", f"{RIVALS}.simifeat:simifeat_rank", "SimiFeat, rank", _SIMIFEAT, family=SIMIFEAT),
)
_LEFT_OUT = {
    "every-part": "every part",
    "without-gate": "without the gate",
    "moving-average-gate": "moving-average gate",
    "without-calibration": "without calibration",
    "without-temperature": "without temperature",
    "without-sketch": "without sketched PCG",
    "without-trigger": "without trigger",
    "low-rank": "low-rank curvature",
    "without-low-rank": "without low rank",
    "without-preconditioner": "without preconditioner",
    "one-tolerance": "one tolerance for all",
    "one-pool": "one pool",
    "fixed-kappa": "fixed κ",
}
METHODS: dict[str, Method] = {
    **{method.name: method for method in _ALL},
    **{name: Method(name, "", f"SG-OIF, {title}", _SGOIF, ABLATIONS) for name, title in _LEFT_OUT.items()},
}
OWN = ("sgoif", "influence")
"""Ours in one piece. What a family returns without being registered is another variant of ours."""


def is_own(name: str) -> bool:
    """Whether a name is that of a user's function, `package.module:function`."""
    return ":" in name


def is_known(name: str) -> bool:
    """Whether a method can be asked for, and is no by-product of another one."""
    return name in METHODS or is_own(name)


def method_of(name: str) -> Method:
    """The method of a name that is known."""
    return Method(name, name, name, "") if is_own(name) else METHODS[name]


def form_of(name: str) -> int:
    """The form of a method as it is now; what is not registered has one."""
    return METHODS[name].form if name in METHODS else 1


def title_of(name: str) -> str:
    """A method as a table calls it, the influence behind an ablation by its method; another goes by its name."""
    behind = name.removesuffix("-influence")
    if name not in METHODS and behind in METHODS:
        return f"{METHODS[behind].title}, influence only"
    return methods.title_of(METHODS, name)


def is_rival(name: str) -> bool:
    """Whether a method is somebody else's."""
    now = name.removesuffix(methods.FORMER)
    return is_known(now) and method_of(now).family not in (OWN_FAMILY, ABLATIONS)


def in_order(names: Iterable[str]) -> list[str]:
    """Ours, then its variants, then the rivals in the order of the registry."""
    listed = list(METHODS)

    def place(name: str) -> tuple[int, int, str]:
        part = OWN.index(name) if name in OWN else len(OWN) + is_rival(name)
        return part, listed.index(name) if name in METHODS else len(listed), name

    return sorted(set(names), key=place)


def choose(wanted: str) -> list[str]:
    """Methods from a list of names and groups in the order of the registry, the user's own behind.

    `simple` are those that share a training, `heavy` those that train in their own way, `all` is both; `ablations` of
    ours are apart.
    """
    kinds = {name: "simple" if method.family in FAMILIES else "heavy" for name, method in METHODS.items()}
    kinds |= {name: ABLATIONS for name, method in METHODS.items() if method.family == ABLATIONS}
    groups = {kind: [name for name in METHODS if kinds[name] == kind] for kind in (ABLATIONS, "heavy", "simple")}
    groups = {"all": groups["simple"] + groups["heavy"], **groups}
    words = [word.strip() for word in wanted.split(",")]
    own = [word for word in dict.fromkeys(words) if is_own(word)]
    for name in own:
        own_function(name, "method")
    listed = ",".join(word for word in words if word not in own)
    return [*(methods.choose(METHODS, groups, listed) if listed or not own else []), *own]


def shares_training(name: str, *, solo: bool) -> bool:
    """Whether a method's outcome comes from a training that serves its whole family."""
    method = method_of(name)
    return method.family in FAMILIES and (not solo or not method.run)


def solver(names: Sequence[str], *, solo: bool) -> Solve:
    """What trains for these methods of one family: the family at once, or a single method alone."""
    if shares_training(names[0], solo=solo):
        return methods.resolve(FAMILIES[METHODS[names[0]].family])  # type: ignore[no-any-return]
    (name,) = names
    if is_own(name):
        return lambda problem, tell: {name: _own_outcome(name, problem, tell)}
    alone = methods.resolve(METHODS[name].run)
    return lambda problem, tell: {name: alone(problem, tell)}


def _own_outcome(name: str, problem: Problem, tell: Say) -> Outcome:
    found = own_function(name, "method")(problem, tell)
    if not isinstance(found, Outcome):
        raise SettingError(
            f"method {name!r} returned a {type(found).__name__}; expected a sgoif_bench.labels.problem.Outcome"
        )
    return found
