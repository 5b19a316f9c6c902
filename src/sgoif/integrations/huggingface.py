"""Hugging Face: `Trainer(..., callbacks=[InfluenceCallback(anchors=holdout_set)])`, batches being dicts.

The index travels in the batch under the key "index". A pre-hook on the model takes it out of the inputs, so that the
model never sees it, and opens a step when a training forward pass begins:

    on_train_begin           make the monitor, give it the state of a checkpoint, register the pre-hook
    forward of the model     take the index out; open a step unless this is evaluation
    on_substep_end           close it: another batch follows before the optimizer steps
    on_pre_optimizer_step    close it: the optimizer is about to step
    on_save                  write the monitor's state into the checkpoint
    on_train_end             remove the hooks, log the health of the run

The Trainer drops columns that the model's `forward` does not name. Either tell it not to, with
`TrainingArguments(remove_unused_columns=False)`, or let `InfluenceCallback(...).attach(trainer)` add one to its list.
"""

import logging
import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from sgoif.errors import IndexingError, MissingExtraError, SettingError
from sgoif.integrations.records import follow
from sgoif.integrations.steps import INDEX, Results, tell_health
from sgoif.monitor import InfluenceMonitor
from sgoif.tracking.hooks import OwnHook

try:
    from transformers import TrainerCallback
except ImportError as error:
    if find_spec("transformers") is not None:
        raise  # it is there; something that it needs is not
    raise MissingExtraError("transformers", "transformers", "the Trainer callback") from error

STATE = "sgoif-monitor.npz"
logger = logging.getLogger(__name__)


class InfluenceCallback(Results, TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Scores the training examples of a `transformers.Trainer`.

    The Trainer says nothing when training fails. Call `close()` then, if the model is used further without another
    call of `train()`.

    Args:
        anchors: the hold-out, whose items are dicts like those of the training set.
        index: key of the indices in a batch.
        target: key of labels, where the loss does not show them.
        log: whether every refresh goes where the Trainer reports to; needs `attach(trainer)`.
        **settings: arguments of `sgoif.InfluenceMonitor`.

    Example:
        ```python
        from transformers import Trainer, TrainingArguments
        from sgoif import indexed, split_holdout
        from sgoif.integrations.huggingface import InfluenceCallback

        train_set, holdout_set = split_holdout(dataset, share=0.2)
        callback = InfluenceCallback(anchors=holdout_set)
        arguments = TrainingArguments("out", num_train_epochs=2, save_strategy="no", report_to="none")
        trainer = Trainer(model, arguments, train_dataset=indexed(train_set))
        callback.attach(trainer)                            # keeps the column with the indices
        trainer.train()
        print(callback.scores().worst(5), callback.errors().noise_rate())
        ```
    """

    _starts = "trainer.train() starts"

    def __init__(
        self, anchors: Any, *, index: str = INDEX, target: str | None = None, log: bool = False, **settings: Any
    ) -> None:
        super().__init__()
        self.anchors = anchors
        self.index = index
        self.target = target
        self.log = log
        self.settings = settings
        self._trainer: Any = None
        self._handle: Any = None
        self._in_step = False
        """Whether a batch is being trained on, so that a forward pass belongs to it."""

    def attach(self, trainer: Any) -> Self:
        """Add this callback to a trainer, and the index to the columns that it keeps."""
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        self._trainer = trainer
        if trainer.args.remove_unused_columns:
            try:
                # The Trainer has no public way to keep a column that the model does not take.
                trainer._set_signature_columns_if_needed()  # noqa: SLF001
                columns = trainer._signature_columns  # noqa: SLF001
                if self.index not in columns:
                    columns.append(self.index)
            except AttributeError as error:
                raise self._dropped() from error
        return self

    def close(self) -> None:
        """Remove every hook, also after a training that failed. Scores stay readable."""
        unfinished = SettingError("training ended in the middle of a step") if self._step else None
        self._release(unfinished)

    # --- events of the Trainer ----------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()
        if self.log and self._trainer is None:
            raise SettingError(
                "log=True needs the trainer: InfluenceCallback(...).attach(trainer) instead of callbacks=[...]"
            )
        if args.remove_unused_columns and self._trainer is None:
            raise self._dropped()
        if args.n_gpu > 1:
            raise SettingError(
                f"the Trainer spreads batches over {args.n_gpu} GPUs with DataParallel, which copies the model for"
                " every batch. Start one process per GPU: torchrun --nproc-per-node N script.py"
            )
        model: nn.Module = kwargs["model"]
        optimizer = kwargs["optimizer"]
        group = torch.distributed.group.WORLD if args.world_size > 1 else None
        monitor = InfluenceMonitor(
            model,
            getattr(optimizer, "optimizer", optimizer),  # Accelerate puts its own around it
            self.anchors,
            group=group,
            **self.settings,
        )
        self._monitor, self._in_step = monitor, False
        if state.global_step > 0:
            with self._releasing_on_error():
                self._restore(monitor, args, state)
        self._handle = model.register_forward_pre_hook(OwnHook(self._before_forward), with_kwargs=True)
        self.records = follow(monitor, partial(_report, self._trainer)) if self.log else None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._in_step = True

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._after_backward()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._after_backward()
        self._in_step = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._after_backward()  # where an old version knows no event before the optimizer steps
        self._in_step = False
        if self.records is not None:
            self.records.update()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self._monitor is not None and folder.is_dir():
            self._monitor.save(folder / STATE)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._release(None)
        tell_health(self._monitor)

    # --- inside -------------------------------------------------------------------------------------------------

    def _before_forward(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """Take the index out of the inputs; a training forward pass opens a step."""
        found = self.index in kwargs
        index = kwargs.get(self.index)
        if self._in_step and not self._step and model.training and torch.is_grad_enabled():
            with self._releasing_on_error():
                if not found:
                    raise IndexingError(
                        f"the batch has no {self.index!r}: its keys are {', '.join(kwargs)}. Give the Trainer"
                        " indexed(train_set), and a data collator that keeps the key"
                    )
                self._step.open(self.monitor, index, None if self.target is None else kwargs.get(self.target))
        return (args, {name: value for name, value in kwargs.items() if name != self.index}) if found else None

    def _after_backward(self) -> None:
        with self._releasing_on_error():
            self._step.close()

    def _remove_hooks(self) -> None:
        self._in_step = False
        if self._handle is not None:
            self._handle.remove()
        self._handle = None

    def _restore(self, monitor: InfluenceMonitor, args: Any, state: Any) -> None:
        """Go on with the scores of the checkpoint that the Trainer goes on from."""
        named = getattr(args, "resume_from_checkpoint", None)
        places = [Path(args.output_dir) / f"checkpoint-{state.global_step}"]
        if isinstance(named, (str, os.PathLike)):
            places.insert(0, Path(named))
        path = next((place / STATE for place in places if (place / STATE).is_file()), None)
        if path is None:
            logger.warning("no %s in %s: scores start anew at step %d", STATE, places[0], state.global_step)
            return
        monitor.load(path)

    def _dropped(self) -> SettingError:
        return SettingError(
            f"the Trainer would drop the column {self.index!r}. Pass TrainingArguments(remove_unused_columns=False), or"
            " let the callback see to it: InfluenceCallback(...).attach(trainer)"
        )


def _report(trainer: Any, step: int, values: dict[str, float]) -> None:
    """Figures for whatever the Trainer reports to."""
    control = trainer.control
    due = control.should_log
    trainer.log(values)
    control.should_log = due  # logging clears it, but the loss of this step may still have to be reported
