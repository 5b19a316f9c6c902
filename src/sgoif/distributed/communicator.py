"""Several processes that train one model together, as DistributedDataParallel and fully_shard do.

Every rank sees its own part of each batch and keeps its own ledger. What the method needs from the whole batch is small
and is exchanged at fixed moments:

    every step                 indices of the batch, on the host: when to score and refresh, how many examples there are
    curvature update           inputs and output gradients of the head, so that every rank learns the same H
    block of scored steps      Σ|u| and the number of examples per step: one scale q for all
    refresh                    each rank solves for its share of the anchors; residual norms are gathered, ψ_g summed up
    table                      sums of the ledgers, weighted means of their rows

So every rank has the same H, τ, c_v and ψ_g; what follows from that is in docs/distributed.md. A process that is alone
has an object of the same kind, whose calls return what they are given.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sgoif.core.types import Indices
from sgoif.errors import RankError, SgoifError

Value = TypeVar("Value")
Other = TypeVar("Other")
MESSAGE = 2000
"""Most bytes of an error message that are passed on."""


class StepDecision(NamedTuple):
    """What the first rank decides for all: whether time allows a refresh now, and which steps are scored."""

    in_time: bool
    stride: int


class Communicator:
    """This process among those that train the same model."""

    rank, size = 0, 1

    def capture_error(self, work: Callable[[], Value], otherwise: Other) -> Value | Other:
        """The result of `work`. Where there are others, an error is kept for the next exchange."""
        del otherwise
        return work()

    def exchange_step_header(self, indices: Indices, decision: StepDecision) -> tuple[Indices, StepDecision]:
        """Indices of the whole batch and what the first rank decides; raises on every rank what one of them kept."""
        return indices, decision

    def run_and_sync_errors(self, work: Callable[[], None]) -> None:
        """Do something that can fail on one rank alone, and fail on all."""
        work()

    def total(self, values: Tensor) -> Tensor:
        """Sum over ranks."""
        return values

    def gathered(self, rows: Tensor) -> Tensor:
        """The rows of all ranks, in their order; ranks may have different numbers of them."""
        return rows

    def share(self, count: int) -> slice:
        """This rank's part of so many rows."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def turns(self, count: int, batch: int) -> int:
        """Batches of this size in the largest share of so many rows."""
        largest = (count + self.size - 1) // self.size
        return max(1, (largest + batch - 1) // batch)


SINGLE_PROCESS = Communicator()


class ProcessGroupCommunicator(Communicator):
    """Collective calls over a process group; small messages of the host go through one of their own."""

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        members = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        # Tensors on a GPU go by NCCL; a message that the host waits for must not wait for the GPU.
        self._host = group if dist.get_backend(group) == "gloo" else dist.new_group(members, backend="gloo")
        self._failure: Exception | None = None

    def capture_error(self, work: Callable[[], Value], otherwise: Other) -> Value | Other:
        try:
            return work()
        except SgoifError as error:
            self._failure = self._failure or error
            return otherwise

    def exchange_step_header(self, indices: Indices, decision: StepDecision) -> tuple[Indices, StepDecision]:
        head = torch.tensor(
            [self._failure is not None, len(indices), decision.in_time, decision.stride], dtype=torch.int64
        )
        heads = _from_all(head, self.size, self._host)
        if bool(heads[:, 0].any()):
            self._raise(heads[:, 0].bool().tolist())
        everyone = _joined(torch.from_numpy(indices), heads[:, 1].tolist(), self._host)
        _, _, in_time, stride = heads[0].tolist()
        return everyone.numpy(), StepDecision(bool(in_time), stride)

    def run_and_sync_errors(self, work: Callable[[], None]) -> None:
        self.capture_error(work, None)
        failed = _from_all(torch.tensor(int(self._failure is not None)), self.size, self._host)
        if bool(failed.any()):
            self._raise(failed.bool().tolist())

    def _raise(self, failed: list[bool]) -> None:
        """Raise the first failed rank's error on every rank; the rank itself raises its own."""
        own, self._failure = self._failure, None
        first = failed.index(True)
        text = f"{type(own).__name__}: {own}".encode()[:MESSAGE] if own is not None else b""
        message = torch.tensor([*text.ljust(MESSAGE, b"\0")], dtype=torch.uint8)
        messages = _from_all(message, self.size, self._host)
        if own is not None:
            raise own
        told = bytes(messages[first].tolist()).rstrip(b"\0").decode(errors="replace")
        raise RankError(f"rank {first} of {self.size} failed, so all stop here. It said: {told}")

    def total(self, values: Tensor) -> Tensor:
        summed = values.detach().clone()
        dist.all_reduce(summed, group=self._of(values))
        return summed

    def gathered(self, rows: Tensor) -> Tensor:
        counts = _from_all(torch.tensor(len(rows)), self.size, self._host)
        return _joined(rows, counts.tolist(), self._of(rows))

    def _of(self, values: Tensor) -> Any:
        """The group that carries tensors of this device."""
        return self._host if values.device.type == "cpu" else self.group


def _joined(rows: Tensor, counts: list[int], group: Any) -> Tensor:
    """Rows of all ranks: sent with as many as the longest has, cut to what each has."""
    most = max(counts)
    if most == 0:
        return rows
    dtype = rows.dtype
    sent = rows.to(torch.uint8) if dtype == torch.bool else rows
    padded = sent.new_zeros(most, *rows.shape[1:])
    padded[: len(rows)] = sent
    parts = _from_all(padded, len(counts), group)
    return torch.cat([part[:count] for part, count in zip(parts.unbind(), counts, strict=True)]).to(dtype)


def _from_all(values: Tensor, size: int, group: Any) -> Tensor:
    """The values of every rank, [ranks, ...]; they have the same shape everywhere."""
    found = values.new_empty(size, *values.shape)
    dist.all_gather(list(found.unbind()), values.contiguous(), group=group)
    return found


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside what torch.compile and DistributedDataParallel put around it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def find_communicator(model: nn.Module, group: Any = None) -> Communicator:
    """The other ranks, where the model is trained by several: it is wrapped or sharded, or a process group is given."""
    if not dist.is_available() or not dist.is_initialized():
        if group is not None:
            raise RankError("group was given, but torch.distributed is not initialised; start the script with torchrun")
        return SINGLE_PROCESS
    if group is None:
        wrapper = getattr(model, "_orig_mod", model)
        if isinstance(wrapper, nn.parallel.DistributedDataParallel):
            group = wrapper.process_group
        elif not any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
            return SINGLE_PROCESS  # fully_shard has cut none of them into pieces
    several = ProcessGroupCommunicator(group)
    return several if several.size > 1 else SINGLE_PROCESS
