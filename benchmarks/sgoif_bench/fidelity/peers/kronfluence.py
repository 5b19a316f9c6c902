"""kronfluence: influence with identity, diagonal, K-FAC or EK-FAC curvature (Grosse et al., 2023), all layers.

The measurement is the negative margin, as in its own CIFAR-10 example. Damping is a tenth of the mean eigenvalue of
each layer, the paper's rule, which the package offers; its default of 1e-8 is listed apart. On a GPU it runs under
bfloat16 autocast, as its documentation advises.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from sgoif.core.losses import negative_margin
from sgoif_bench.fidelity.answer import Answer, Cost, Trained
from sgoif_bench.fidelity.peers.common import ended, examples, label_changes, need, queries, with_new_labels
from sgoif_bench.fidelity.study import Floats

TRAIN_BATCH, QUERY_BATCH = 512, 128


def make_task() -> Any:
    """Loss and measurement in kronfluence's terms."""
    base = need("kronfluence.task", "kronfluence").Task

    class Margins(base):  # type: ignore[misc, valid-type]
        def compute_train_loss(self, batch: Any, model: Any, sample: bool = False) -> Any:
            inputs, labels = batch
            logits = model(inputs)
            if sample:
                with torch.no_grad():
                    labels = torch.multinomial(logits.float().softmax(-1), 1).flatten()
            return F.cross_entropy(logits.float(), labels, reduction="sum")

        def compute_measurement(self, batch: Any, model: Any) -> Any:
            inputs, labels = batch
            return negative_margin(model(inputs).float(), labels).sum()

    return Margins()


def kronfluence(trained: Trained, strategy: str, damped: bool = True) -> Answer:
    """Scores by one of its strategies: ekfac, kfac, diagonal or identity."""
    analyzer_module = need("kronfluence.analyzer", "kronfluence")
    arguments = need("kronfluence.arguments", "kronfluence")
    study, device = trained.study, trained.study.problem.device
    task, model = make_task(), ended(trained)
    train, asked = examples(study), queries(study)
    precision = torch.bfloat16 if device.type == "cuda" else None
    score_arguments = arguments.ScoreArguments(amp_dtype=precision)
    if damped:
        score_arguments.damping_factor = None  # its word for a tenth of the mean eigenvalue
    cost = Cost(device)
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng():
        torch.manual_seed(study.problem.seed)
        with cost.counted():
            model = analyzer_module.prepare_model(model, task)
            analyzer = analyzer_module.Analyzer(
                analysis_name="fidelity",
                model=model,
                task=task,
                cpu=device.type == "cpu",
                output_dir=folder,
                disable_tqdm=True,
                disable_model_save=True,
            )
            analyzer.fit_all_factors(
                factors_name=strategy,
                dataset=train,
                per_device_batch_size=min(TRAIN_BATCH, len(train)),
                factor_args=arguments.FactorArguments(strategy=strategy, amp_dtype=precision),
            )

            def scored(name: str, data: TensorDataset) -> Floats:
                analyzer.compute_pairwise_scores(
                    scores_name=name,
                    factors_name=strategy,
                    query_dataset=asked,
                    train_dataset=data,
                    per_device_query_batch_size=min(QUERY_BATCH, len(asked)),
                    per_device_train_batch_size=min(TRAIN_BATCH, len(data)),
                    score_args=score_arguments,
                )
                found: Floats = analyzer.load_pairwise_scores(name)["all_modules"].float().cpu().numpy()
                return found

            scores = scored(strategy, train)
        changes = None
        if trained.relabelled is not None:
            relabelled = scored("relabelled", with_new_labels(study, trained.relabelled))
            changes = label_changes(scores, relabelled, trained.relabelled)
    return Answer(scores, cost.seconds, cost.memory, relabelled=changes)
