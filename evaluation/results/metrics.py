"""Metrics that others bring, by the entry points ``fedmerit.metrics``: of masks, where the images are.

They are computed by `fedmerit evaluate`; no site sends them in a run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedmerit.plugins import Catalogue
from fedmerit.training.data import Case
from fedmerit.training.prediction import predict

Mask = NDArray[np.bool_]  # (slices, height, width)
# of prediction, reference, and the mm between slices, rows and columns (None: not known); None: not defined
Metric = Callable[[Mask, Mask, tuple[float, float, float] | None], float | None]

METRICS: Catalogue[Metric] = Catalogue("metrics", {}, callable, "a function of prediction, reference and spacing")


def measured(
    network: nn.Module, case: Case, labels: Sequence[str], metrics: Mapping[str, Metric]
) -> Iterator[tuple[str, str, float | None]]:
    """(metric, label, value) of one case."""
    masks, reference = predict(network, np.array(case.image)), np.array(case.label, dtype=np.bool_)
    for place, label in enumerate(labels):
        for name, metric in metrics.items():
            value = metric(masks[:, place], reference[:, place], case.spacing)
            yield name, label, None if value is None else float(value)
