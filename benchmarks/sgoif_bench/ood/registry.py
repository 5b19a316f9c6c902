"""The methods of the comparison by name.

A *post-hoc* detector looks at a network that was trained as usual: one training serves all of them. A *trained* method
trains in its own way. *Ablations* are sentinels of monitors that each lack a part, all of one training (`online`).
Modules are imported when a method is first run, not before.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sgoif_bench import methods
from sgoif_bench.labels import registry as labels
from sgoif_bench.ood.detector import Detector
from sgoif_bench.ood.trained.method import Train

DETECTORS, TRAINED = "sgoif_bench.ood.detectors", "sgoif_bench.ood.trained"
POST_HOC, ABLATIONS = "post-hoc", "ablations"
SHARED = (POST_HOC, ABLATIONS)
"""Families of which one training serves all methods."""
ONLINE = "online"
WEIGHTED = f"{ONLINE}-weighted"
"""Anchors count by the monitor's confidence, as they do in all that lack a part."""


@dataclass(frozen=True)
class Method:
    """A way to tell outliers from in-distribution images."""

    name: str
    run: str
    """`module:class` of a detector, or `module:function` of a method that trains; empty for ablations."""
    title: str
    """As it stands in a table."""
    paper: str
    trains: bool = False
    """Whether it trains in its own way."""
    needs_outliers: bool = False
    """Whether it is defined with a set of unlabelled outliers to train with."""
    percentile: float | None = None
    """Of a detector that is one step of a sweep."""
    form: int = 1
    """Goes up when the method is changed, so that results of what it was before are not taken for its own."""

    @property
    def family(self) -> str:
        """What is trained together."""
        if not self.run:
            return ABLATIONS
        return self.name if self.trains else POST_HOC


def _post_hoc(place: str, name: str, title: str, paper: str, form: int = 1) -> Method:
    return Method(name, f"{DETECTORS}.{place}", title, paper, form=form)


def _online_title(left_out: str) -> str:
    return f"SG-OIF sentinel, online, {labels.METHODS[left_out].title.removeprefix('SG-OIF, ')}"


def _trained(name: str, title: str, paper: str, *, needs_outliers: bool = False, form: int = 1) -> Method:
    run = f"{TRAINED}.{name}:{name}"
    return Method(name, run, title, paper, trains=True, needs_outliers=needs_outliers, form=form)


_SGOIF = "SG-OIF: A Stability-Guided Online Influence Framework for Reliable Vision Data"
_SCALING = "Hendrycks et al., Scaling Out-of-Distribution Detection for Real-World Settings, ICML 2022"

_GODIN = (
    "Hsu et al., Generalized ODIN: Detecting Out-of-distribution Image without Learning from Out-of-distribution Data,"
    " CVPR 2020"
)
_ASH = "Djurisic et al., Extremely Simple Activation Shaping for Out-of-Distribution Detection, ICLR 2023"
_SCALE = "Xu et al., Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement, ICLR 2024"
_ROTPRED = "Hendrycks et al., Using Self-Supervised Learning Can Improve Model Robustness and Uncertainty, NeurIPS 2019"
PERCENTILES = (65, 70, 75, 80, 85, 90, 95)
"""What OpenOOD chooses from by validation outliers; here there are none, and each has a row."""

_ALL = (
    _post_hoc("sentinel:SentinelDetector", "sentinel", "SG-OIF sentinel", _SGOIF),
    _post_hoc("sentinel:UngatedSentinel", "sentinel-ungated", "SG-OIF sentinel, no gate", _SGOIF),
    _post_hoc(
        "msp:MSP",
        "msp",
        "MSP",
        "Hendrycks and Gimpel, A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural"
        " Networks, ICLR 2017",
    ),
    _post_hoc("mls:MLS", "mls", "MLS", _SCALING),
    _post_hoc("ebo:EBO", "ebo", "Energy", "Liu et al., Energy-based Out-of-distribution Detection, NeurIPS 2020"),
    _post_hoc(
        "odin:ODIN",
        "odin",
        "ODIN",
        "Liang et al., Enhancing The Reliability of Out-of-distribution Image Detection in Neural Networks, ICLR 2018",
        form=2,  # a step in units of the pixels
    ),
    _post_hoc(
        "gen:GEN",
        "gen",
        "GEN",
        "Liu et al., GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection, CVPR 2023",
    ),
    _post_hoc("klm:KLM", "klm", "KL matching", _SCALING),
    _post_hoc(
        "gradnorm:GradNorm",
        "gradnorm",
        "GradNorm",
        "Huang et al., On the Importance of Gradients for Detecting Distributional Shifts in the Wild, NeurIPS 2021",
    ),
    _post_hoc(
        "react:ReAct",
        "react",
        "ReAct",
        "Sun et al., ReAct: Out-of-distribution Detection With Rectified Activations, NeurIPS 2021",
    ),
    _post_hoc(
        "dice:DICE",
        "dice",
        "DICE",
        "Sun and Li, DICE: Leveraging Sparsification for Out-of-Distribution Detection, ECCV 2022",
    ),
    _post_hoc(
        "ash:ASH",
        "ash",
        "ASH-S",
        _ASH,
    ),
    _post_hoc(
        "scale:SCALE",
        "scale",
        "SCALE",
        _SCALE,
    ),
    _post_hoc("vim:ViM", "vim", "ViM", "Wang et al., ViM: Out-Of-Distribution with Virtual-logit Matching, CVPR 2022"),
    _post_hoc(
        "knn:KNN", "knn", "KNN", "Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, ICML 2022"
    ),
    _post_hoc(
        "nnguide:NNGuide",
        "nnguide",
        "NNGuide",
        "Park et al., Nearest Neighbor Guidance for Out-of-Distribution Detection, ICCV 2023",
    ),
    _post_hoc(
        "mahalanobis:Mahalanobis",
        "mahalanobis",
        "Mahalanobis",
        "Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks,"
        " NeurIPS 2018",
        form=2,  # a pseudo-inverse in place of a ridge
    ),
    _post_hoc(
        "relative_mahalanobis:RelativeMahalanobis",
        "relative-mahalanobis",
        "Relative Mahalanobis",
        "Ren et al., A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection, ICML workshop 2021",
        form=2,  # as Mahalanobis
    ),
    _post_hoc(
        "gram:Gram",
        "gram",
        "Gram",
        "Sastry and Oore, Detecting Out-of-Distribution Examples with Gram Matrices, ICML 2020",
        form=2,  # all convolutions and activations
    ),
    _post_hoc(
        "patchcore:PatchCore",
        "patchcore",
        "PatchCore",
        "Roth et al., Towards Total Recall in Industrial Anomaly Detection, CVPR 2022",
    ),
    _post_hoc(
        "energy_knn:EnergyKNN",
        "energy-knn",
        "Energy + multi-layer KNN",
        "baseline of this benchmark, after Liu et al., NeurIPS 2020 and Sun et al., ICML 2022",
    ),
    _post_hoc(
        "opengan:OpenGAN",
        "opengan",
        "OpenGAN",
        "Kong and Ramanan, OpenGAN: Open-Set Recognition via Open Data Generation, ICCV 2021",
    ),
    _post_hoc(
        "nac:NAC",
        "nac",
        "NAC",
        "Liu et al., Neuron Activation Coverage: Rethinking Out-of-distribution Detection and Generalization,"
        " ICLR 2024",
    ),
    _post_hoc(
        "weiper:WeiPer",
        "weiper",
        "WeiPer+KLD",
        "Granz et al., WeiPer: OOD Detection using Weight Perturbations of Class Projections, NeurIPS 2024",
    ),
    _post_hoc(
        "grood:GROOD",
        "grood",
        "GROOD",
        "ElAraby et al., GROOD: Gradient-Aware Out-of-Distribution Detection, TMLR 2025",
    ),
    _post_hoc(
        "combood:CombOOD",
        "combood",
        "CombOOD",
        "Rajasekaran et al., COMBOOD: A Semiparametric Approach for Detecting Out-of-distribution Data for Image"
        " Classification, SDM 2024",
    ),
    _trained(
        "logitnorm",
        "LogitNorm",
        "Wei et al., Mitigating Neural Network Overconfidence with Logit Normalization, ICML 2022",
    ),
    _trained(
        "godin",
        "G-ODIN",
        _GODIN,
    ),
    Method("godin-still", f"{TRAINED}.godin:godin_still", "G-ODIN, ε = 0", _GODIN, trains=True),
    Method("godin-small", f"{TRAINED}.godin:godin_small", "G-ODIN, ε = 0.0025", _GODIN, trains=True),
    _trained("vos", "VOS", "Du et al., VOS: Learning What You Don't Know by Virtual Outlier Synthesis, ICLR 2022"),
    _trained(
        "pixmix",
        "PixMix",
        "Hendrycks et al., PixMix: Dreamlike Pictures Comprehensively Improve Safety Measures, CVPR 2022",
        form=2,  # all operations
    ),
    _trained("rotpred", "RotPred", _ROTPRED),
    Method("rotpred-pixmix", f"{TRAINED}.rotpred:rotpred_pixmix", "RotPred + PixMix", _ROTPRED, trains=True),
    _trained(
        "udg", "UDG", "Yang et al., Semantically Coherent Out-of-Distribution Detection, ICCV 2021", needs_outliers=True
    ),
    _trained(
        "mos",
        "MOS",
        "Huang and Li, MOS: Towards Scaling Out-of-distribution Detection for Large Semantic Space, CVPR 2021",
    ),
    _trained(
        "cutpaste",
        "CutPaste",
        "Li et al., CutPaste: Self-Supervised Learning for Anomaly Detection and Localization, CVPR 2021",
    ),
    _trained(
        "draem",
        "DRAEM",
        "Zavrtanik et al., DRAEM: A Discriminatively Trained Reconstruction Embedding for Surface Anomaly Detection,"
        " ICCV 2021",
    ),
    _trained(
        "csi",
        "CSI",
        "Tack et al., CSI: Novelty Detection via Contrastive Learning on Distributionally Shifted Instances,"
        " NeurIPS 2020",
        form=2,  # temperature, weight decay and epochs for labelled data
    ),
    _trained(
        "arpl", "ARPL", "Chen et al., Adversarial Reciprocal Points Learning for Open Set Recognition, TPAMI 2021"
    ),
)
_LEFT_OUT = (
    "without-gate",
    "moving-average-gate",
    "without-calibration",
    "low-rank",
    "without-low-rank",
    "without-preconditioner",
    "without-trigger",
)
"""The paper's ablations with figures of outliers, and the curvature that two of them belong to."""
_SWEPT = tuple(
    Method(f"{name}-{percentile}", f"{DETECTORS}.{place}", f"{title}, {percentile}%", paper, percentile=percentile)
    for name, place, title, paper in (("ash", "ash:ASH", "ASH-S", _ASH), ("scale", "scale:SCALE", "SCALE", _SCALE))
    for percentile in PERCENTILES
)
METHODS: dict[str, Method] = {
    **{method.name: method for method in (*_ALL, *_SWEPT)},
    ONLINE: Method(ONLINE, "", "SG-OIF sentinel, online", _SGOIF),
    WEIGHTED: Method(WEIGHTED, "", "SG-OIF sentinel, online, anchors by confidence", _SGOIF),
    **{f"{ONLINE}-{name}": Method(f"{ONLINE}-{name}", "", _online_title(name), _SGOIF) for name in _LEFT_OUT},
}


def title_of(name: str) -> str:
    """A method as a table calls it; one that is not registered goes by its name."""
    return methods.title_of(METHODS, name)


def in_order(names: Iterable[str]) -> list[str]:
    """Methods as the registry lists them, others behind."""
    return methods.in_order(METHODS, names)


def choose(wanted: str) -> list[str]:
    """Methods from a list of names and groups, in the registry's order; `all` is post-hoc and trained.

    `sweeps` are post-hoc detectors once more, with each percentile that OpenOOD tries.
    """
    swept = [name for name, method in METHODS.items() if method.percentile is not None]
    groups = {
        "all": [name for name, method in METHODS.items() if method.family != ABLATIONS and name not in swept],
        POST_HOC: [name for name, method in METHODS.items() if method.family == POST_HOC and name not in swept],
        "trained": [name for name, method in METHODS.items() if method.trains],
        ABLATIONS: [name for name, method in METHODS.items() if method.family == ABLATIONS],
        "sweeps": swept,
    }
    return methods.choose(METHODS, groups, wanted)


def new_detector(name: str, seed: int, spread: Sequence[float] | None = None) -> Detector:
    """A detector that has not been fitted; one that asks for them gets the run's seed and the images' spread."""
    kind = methods.resolve(METHODS[name].run)
    offered = {"seed": seed, "spread": spread, "percentile": METHODS[name].percentile}
    takes = inspect.signature(kind).parameters
    detector: Detector = kind(**{key: value for key, value in offered.items() if key in takes and value is not None})
    return detector


def train_function(name: str) -> Train:
    """What trains a method."""
    return methods.resolve(METHODS[name].run)  # type: ignore[no-any-return]
