"""Wrong labels, made on purpose. Every function returns the new labels and a mask of the ones that are wrong."""

from sgoif.commands.demo.digits import FLIPS as DIGIT_FLIPS
from sgoif_bench.noise.flips import (
    CIFAR10_CLASSES,
    CIFAR10_FLIPS,
    class_dependent,
    next_class,
    next_in_superclass,
    symmetric,
    within_superclass,
)
from sgoif_bench.noise.human import human, read_human
from sgoif_bench.noise.instance import instance_dependent
from sgoif_bench.noise.labels import NoisyLabels
from sgoif_bench.noise.matrix import by_matrix, by_matrix_as_cleanlab, noise_matrix_from_trace

__all__ = [
    "CIFAR10_CLASSES",
    "CIFAR10_FLIPS",
    "DIGIT_FLIPS",
    "NoisyLabels",
    "by_matrix",
    "by_matrix_as_cleanlab",
    "class_dependent",
    "human",
    "instance_dependent",
    "next_class",
    "next_in_superclass",
    "noise_matrix_from_trace",
    "read_human",
    "symmetric",
    "within_superclass",
]
