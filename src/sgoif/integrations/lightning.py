"""Lightning: `Trainer(callbacks=[InfluenceCallback(anchors=holdout_set)])`.

    on_train_start         make the monitor, give it the state of a checkpoint
    on_train_batch_start   open a step
    on_after_backward      close it: before the optimizer steps, as in a loop of one's own
    on_train_batch_end     close one that a backward pass outside Lightning's sight went through
    on_train_end           remove the hooks, log the health of the run; after an error the former alone

A strategy that wraps the module (DistributedDataParallel) runs `training_step` in the place of `forward`, so the
module's own hooks see the loss as if it were its output. `_LossHider` keeps it from the monitor, which wants logits.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.errors import MissingExtraError, SettingError, StepError
from sgoif.integrations.records import follow
from sgoif.integrations.steps import BatchKey, Results, find, find_index, tell_health
from sgoif.monitor import InfluenceMonitor

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise MissingExtraError("lightning", "lightning", "the Lightning callback") from error


class InfluenceCallback(Results, Callback):  # type: ignore[misc, unused-ignore]
    """Scores the training examples of a Lightning fit.

    Args:
        anchors: the hold-out.
        index: where in a batch the indices are: the last of three or more parts or the key "index" by default,
            otherwise a position, a key or a function of the batch.
        target: the same for labels, where the loss does not show them.
        model: name of the submodule that returns logits, where it is not the module itself.
        optimizer: number of the optimizer that trains it, where there are several.
        log: whether every refresh goes to the trainer's loggers.
        **settings: arguments of `sgoif.InfluenceMonitor`.

    Example:
        ```python
        from lightning.pytorch import Trainer
        from sgoif import indexed
        from sgoif.integrations.lightning import InfluenceCallback

        callback = InfluenceCallback(anchors=holdout_set)
        trainer = Trainer(max_epochs=2, callbacks=[callback], logger=False, enable_checkpointing=False)
        trainer.fit(module, DataLoader(indexed(train_set), batch_size=32, shuffle=True))
        print(callback.scores().worst(5), callback.errors().noise_rate())
        ```
    """

    _starts = "trainer.fit(...) starts to train"

    def __init__(
        self,
        anchors: Any,
        *,
        index: BatchKey = None,
        target: BatchKey = None,
        model: str | None = None,
        optimizer: int | None = None,
        log: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.anchors = anchors
        self.index = index
        self.target = target
        self.model = model
        self.optimizer = optimizer
        self.log = log
        self.settings = settings
        self._loss_hider: _LossHider | None = None
        self._restored: dict[str, Any] | None = None

    # --- life of a fit ------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._release(None)
        model = self._watched(pl_module)
        group = torch.distributed.group.WORLD if trainer.world_size > 1 else None
        monitor = InfluenceMonitor(model, self._optimizer_of(trainer), self.anchors, group=group, **self.settings)
        self._monitor = monitor
        if self._restored is not None:
            with self._releasing_on_error():
                monitor.load_state_dict(self._restored)
        self._restored = None
        wrapped = model is pl_module and trainer.strategy.model is not pl_module
        self._loss_hider = _LossHider(model) if wrapped else None
        self.records = follow(monitor, partial(_log, trainer)) if self.log else None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._step.abandon()
        self._step.open(self.monitor, find_index(batch, self.index), find(batch, self.target))

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if self._step and not pl_module.automatic_optimization and not self._step.answered:
            return  # the backward pass of another model of the module; that of the watched one is still to come
        self._step.close()
        if self.records is not None:
            self.records.update()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not self._step:
            return
        if pl_module.automatic_optimization:
            self._step.abandon()  # training_step returned None: Lightning skips the batch and so do the scores
            return
        try:
            self._step.close()
        except StepError as error:
            raise StepError(
                "under manual optimization training_step ended without forward and backward pass of the watched"
                " model in this batch. Call self.manual_backward(loss) for every batch, and name the watched model"
                f" with model=... where the module holds several. The monitor said: {error}"
            ) from error
        self.on_after_backward(trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._step.abandon()
        self._release(None)
        tell_health(self._monitor)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._release(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit" and self._step:
            self._release(StepError("the fit ended in the middle of a step"))

    def _remove_hooks(self) -> None:
        if self._loss_hider is not None:
            self._loss_hider.remove()
        self._loss_hider = None

    # --- checkpoints --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The monitor's state, for the checkpoint that Lightning writes."""
        if self._restored is not None:
            return {"monitor": self._restored}
        return {} if self._monitor is None else {"monitor": self._monitor.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep a state until the monitor is made, which needs the optimizer."""
        self._restored = state_dict.get("monitor")

    # --- inside -------------------------------------------------------------------------------------------------

    def _watched(self, module: nn.Module) -> nn.Module:
        if self.model is None:
            return module
        try:
            found = attrgetter(self.model)(module)
        except AttributeError:
            found = None
        if not isinstance(found, nn.Module):
            names = ", ".join(name for name, _ in module.named_children()) or "none"
            raise SettingError(
                f"model={self.model!r} is not a submodule of {type(module).__name__}; its submodules are {names}"
            )
        return found

    def _optimizer_of(self, trainer: Any) -> torch.optim.Optimizer:
        optimizers: Sequence[torch.optim.Optimizer] = trainer.optimizers
        if not optimizers:
            raise SettingError("configure_optimizers returned no optimizer, so nothing is trained that could be scored")
        if self.optimizer is None and len(optimizers) > 1:
            raise SettingError(
                f"the module has {len(optimizers)} optimizers; say which one trains the watched model:"
                f" optimizer=0 to optimizer={len(optimizers) - 1}"
            )
        chosen = self.optimizer or 0
        if not 0 <= chosen < len(optimizers):
            raise SettingError(f"optimizer={chosen} is out of range: the module has {len(optimizers)}")
        return optimizers[chosen]


def _log(trainer: Any, step: int, values: dict[str, float]) -> None:
    """Figures for every logger of a trainer, at the trainer's step, beside which everything else is drawn."""
    for logger in trainer.loggers:
        logger.log_metrics(values, step=trainer.global_step)


class _HiddenOutput:
    """An output that no hook should take for logits."""

    def __init__(self, output: Any) -> None:
        self.output = output


class _LossHider:
    """Two hooks around the monitor's, which are there by now: one hides what a training step returns, one shows it."""

    def __init__(self, model: nn.Module) -> None:
        self._handles = [
            model.register_forward_hook(self._hide, prepend=True),
            model.register_forward_hook(self._show),
        ]

    @staticmethod
    def _hide(_: nn.Module, args: Any, output: Any) -> Any:
        scalar = isinstance(output, Tensor) and output.dim() == 0
        return _HiddenOutput(output) if scalar or (isinstance(output, Mapping) and "loss" in output) else None

    @staticmethod
    def _show(_: nn.Module, args: Any, output: Any) -> Any:
        return output.output if isinstance(output, _HiddenOutput) else None

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
