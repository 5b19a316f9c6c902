"""A copy of a network that gives the same features in less time; on a GPU little differs, on a CPU much.

Batch norm goes into the convolution before it. On a CPU the time goes into memory more than into sums, so ReLU and what
TensorFlow pads are left to the convolution too, and layers with large maps see a few images at a time.
"""

import copy
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

FEW = 4
"""Images whose large maps stay in the cache of a CPU. With 16, a quarter of the time went into memory that the system
handed out anew for every layer; later layers, whose weights are larger than their maps, are quicker with 16."""


class SamePad(nn.Module):
    """What TensorFlow pads before stride 2: for even sides less at the upper left than at the lower right."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        high, wide = (self.side - 2 + n % 2 for n in x.shape[-2:])
        return F.pad(x, (wide // 2, wide - wide // 2, high // 2, high - high // 2))


def fused(network: nn.Module, early: int = 0) -> nn.Module:
    """A copy with the same outputs; of a chain, the first `early` layers are those with large maps (0: all)."""
    network = copy.deepcopy(network).eval()
    for chain in [module for module in network.modules() if type(module).forward is nn.Sequential.forward]:
        assert isinstance(chain, nn.Sequential)
        _fuse(chain)
    return FewAtFirst(network, early)


def _fuse(chain: nn.Sequential) -> None:
    """Leave what comes around a convolution to it; nothing takes the place of the others."""
    place = 0
    for index in range(1, len(chain)):
        before, module = chain[place], chain[index]
        # A subclass may do more than its weights say.
        if type(before) is nn.Conv2d and type(module) is nn.BatchNorm2d and module.track_running_stats:
            chain[place], chain[index] = fuse_conv_bn_eval(before, module), nn.Identity()
        elif type(before) is nn.Conv2d and isinstance(module, nn.ReLU | nn.ReLU6) and type(module) in LIMITS:
            pad = chain[place - 1] if place else None
            if isinstance(pad, SamePad):
                chain[place - 1] = nn.Identity()
            chain[place] = ConvRelu(before, module, pad if isinstance(pad, SamePad) else None)
            chain[index] = nn.Identity()
        else:
            place = index


class ConvRelu(nn.Module):
    """A convolution, the ReLU after it and the padding before: in one pass over memory where oneDNN does all."""

    def __init__(self, convolution: nn.Conv2d, relu: nn.ReLU | nn.ReLU6, pad: SamePad | None = None) -> None:
        super().__init__()
        self.convolution, self.relu, self.pad = convolution, relu, pad
        relu.inplace = True
        usual = convolution.padding_mode == "zeros" and isinstance(convolution.padding, tuple)
        self.together = together() if usual else None

    def forward(self, x: Tensor) -> Tensor:
        conv = self.convolution
        if self.together is None or x.device.type != "cpu" or x.dtype != torch.float32:
            plain: Tensor = self.relu(conv(x if self.pad is None else self.pad(x)))
            return plain
        padding, cut = conv.padding, [0, 0]
        if self.pad is not None:
            # Even sides: with two more above, as many as below or one more, the outputs are the same after the first.
            cut = [1 - n % 2 for n in x.shape[-2:]]
            padding = tuple((self.pad.side - 1) // 2 + n for n in cut)
        shape = padding, conv.stride, conv.dilation, conv.groups
        found: Tensor = self.together(x, conv.weight, conv.bias, *shape, *LIMITS[type(self.relu)], "")
        return found[..., cut[0] :, cut[1] :]


class FewAtFirst(nn.Module):
    """A network whose layers with large maps see a few images at a time on a CPU."""

    def __init__(self, network: nn.Module, early: int) -> None:
        super().__init__()
        chain = network if early and isinstance(network, nn.Sequential) else nn.Sequential(network)
        self.early, self.late = chain[: early or 1], chain[early or 1 :]

    def forward(self, x: Tensor) -> Tensor:
        on_cpu = x.device.type == "cpu"
        found: Tensor = self.late(torch.cat([self.early(part) for part in x.split(FEW)]) if on_cpu else self.early(x))
        return found


LIMITS: dict[type, tuple[str, list[float]]] = {nn.ReLU: ("relu", []), nn.ReLU6: ("hardtanh", [0.0, 6.0])}
"""What oneDNN calls them, and the limits that it is given."""
NAME = "_convolution_pointwise"


@cache
def together() -> Callable[..., Tensor] | None:
    """What the compiler of torch puts in the place of the two; None where this torch has none that gives the same."""
    x, weight = torch.linspace(-1, 1, 18).view(1, 2, 3, 3), torch.linspace(-1, 1, 4).view(2, 2, 1, 1)
    try:
        found: Callable[..., Tensor] = getattr(torch.ops.mkldnn, NAME)
        sums = found(x, weight, None, (0, 0), (1, 1), (1, 1), 1, *LIMITS[nn.ReLU], "")
        same = torch.allclose(sums, F.conv2d(x, weight).relu(), atol=1e-5)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return found if same else None
