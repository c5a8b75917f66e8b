"""A verdict against a site, beside what the site's log shows of its work: see `fedmerit.site.witness`.

The ledger's scores z_j of a site with each other, and the parts a_j u_j of these in the step of its model, bound what
the log can show: by Cauchy and Schwarz z² ≤ Σ z_j² κ, κ = Σ ‖a_j u_j‖² / ‖Σ a_j r_j‖², if the entries of updates are of
about equal sizes. So a log that shows more does not contradict a wrong verdict, but untrue scores.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch

from fedmerit.errors import BadInput
from fedmerit.evidence.verification.replay import PlayedRound
from fedmerit.evidence.verification.site_logs import SiteLog
from fedmerit.guard.work import log_e_values

CHANCE = 1e-6  # of what a log shows, without work
ROUNDING = 1e-8  # of squared lengths, of models in float32
SLACK = 4.0  # times what the scores allow: entries differ in size; real runs came to .26, generated ones to 1.7
Witness = tuple[PlayedRound, Mapping[str, float]]  # what a log has, as "step", of the model that a round ended with


def compare_work(played: Sequence[PlayedRound], witnesses: Sequence[Witness], log: SiteLog) -> Iterator[str]:
    """In a sentence, if a verdict against a log's site cannot be compared with the log.

    Args:
        witnesses: those of which the log has a step.

    Raises:
        BadInput: the log shows work in rounds whose scores show none.
    """
    against = [one for one in played if log.site in one.guard.get("verdicts", ())]
    if not against:
        return
    last, rounds, shown, allowed = against[-1].record["round"], list[int](), 0.0, 0.0
    for one, step in witnesses:
        if one.record["round"] <= last and _counts_against(one, log.site) and (found := _evidence(one, step, log.site)):
            rounds.append(one.record["round"])
            shown, allowed = shown + found[0], allowed + found[1]
    begins = against[0].record["round"]
    if not rounds:
        yield f"that {log.site} did not work, as the verdict from round {begins} on says: its log cannot show it"
        return
    chance = float(torch.special.gammaincc(torch.tensor(len(rounds) / 2).double(), torch.tensor(shown / 2).double()))
    if chance < CHANCE and shown > SLACK * allowed:
        when = f"round{'s' * (len(rounds) > 1)} {', '.join(map(str, rounds))}"
        raise BadInput(
            f"{against[0].line}: verdict against {log.site} from round {begins} on: by its scores it did not work in "
            f"{when}; {log.path} shows work there (chance without work: {max(chance, 1e-99):.0e}): one is untrue"
        )


def _counts_against(one: PlayedRound, site: str) -> bool:
    measured = one.inputs.measured
    return measured is not None and float(log_e_values(measured.scores)[one.sites.index(site)]) > 0


def _evidence(one: PlayedRound, step: Mapping[str, float], site: str) -> tuple[float, float] | None:
    """z² of a round, χ² of one degree without work, and the most that its scores allow; None: the step is its own."""
    products, row = one.inputs.reports.products, one.sites.index(site)
    if one.steps is None or products is None or one.inputs.measured is None or "rrqq" not in step:
        return None
    parts = one.steps[row]
    own, others = float(parts[row]), parts.square() * products.diagonal()
    variance = step["rrqq"] - 2 * own * step["rrrq"] + own**2 * step["rrrr"]
    length = step["qq"] - 2 * own * step["rq"] + own**2 * step["rr"]
    most, rounding = float(others.sum() - others[row]), ROUNDING * (step["qq"] + own**2 * step["rr"])
    if not min(most, length - rounding) > 0:  # or unknown
        return None
    scores = one.inputs.measured.scores[row].nan_to_num(0.0)
    along = step["rq"] - own * step["rr"]
    return along**2 / variance if variance > 0 else 0.0, float(scores.square().sum()) * most / length
