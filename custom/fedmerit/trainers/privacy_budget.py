"""The privacy that DP-SGD gives a site's patients, as Opacus accounts for it.

The mechanism is the subsampled Gaussian: each step draws each patient with probability q, cuts each drawn patient's
gradient to length C, and adds noise of standard deviation σ C to their sum (Abadi et al. 2016). Neighbouring data sets
differ in one patient, with all its images. Accounting is by Rényi differential privacy (Mironov, Talwar
and Zhang 2019), whose sums over steps, rounds and jobs of different noise hold.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.settings import Privacy, Training


@cache
def load_opacus() -> None:
    """Import Opacus, and put back the process's handlers and level of logging, which its import sets."""
    handlers, level = list(logging.root.handlers), logging.root.level
    import opacus  # noqa: F401

    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@dataclass(frozen=True)
class Mechanism:
    """The subsampled Gaussian mechanism of some steps."""

    noise: float  # σ, standard deviation as a multiple of the clipping length
    rate: float  # q, probability that a patient is drawn in a step, above 0 to 1
    steps: int


def steps_per_round(images: int, training: Training) -> int:
    """Return the number K of optimizer steps per round of a site with so many training images."""
    return training.steps or -(-images // training.batch_size) * training.epochs


def plan_mechanism(config: RunConfiguration, images: int, patients: int, site: str) -> Mechanism:
    """Return the mechanism of one round at a site.

    Args:
        config: a run by DP-SGD.
        images: training images of the site.
        patients: patients of these.
        site: name, for messages.

    Raises:
        BadInput: δ is no smaller than 1 by the number of patients, or no noise is enough for ε.
    """
    privacy, steps = config.privacy, steps_per_round(images, config.training)
    if privacy.dp_delta * patients >= 1:
        raise BadInput(
            f"dp_delta={privacy.dp_delta:g}: site {site} trains on {patients} patients, and publishing one of them at "
            f"random would pass; expected less than {1 / patients:g}"
        )
    rate = min(1.0, config.training.batch_size / privacy.dp_slices / patients)
    noise = privacy.dp_noise or _noise_for(privacy, rate, steps * config.rounds)
    return Mechanism(noise, rate, steps)


@cache
def _noise_for(privacy: Privacy, rate: float, steps: int) -> float:
    """Return σ for ``dp_epsilon`` after so many steps."""
    load_opacus()
    from opacus.accountants.utils import get_noise_multiplier

    target = {"target_epsilon": privacy.dp_epsilon, "target_delta": privacy.dp_delta}
    tolerance = min(0.01, privacy.dp_epsilon / 100)
    try:
        return float(
            get_noise_multiplier(**target, sample_rate=rate, steps=steps, accountant="rdp", epsilon_tolerance=tolerance)
        )
    except ValueError as error:
        raise BadInput(
            f"dp_epsilon={privacy.dp_epsilon:g}: no noise is enough for {steps} steps ({error}); take fewer, or more ε"
        ) from None


def spent_epsilon(mechanisms: Iterable[Mechanism], delta: float) -> float:
    """Return the ε at δ = ``delta`` of mechanisms one after the other, 0 of none."""
    load_opacus()
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(each.noise, each.rate, each.steps) for each in mechanisms if each.steps]
    return float(accountant.get_epsilon(delta=delta)) if accountant.history else 0.0
