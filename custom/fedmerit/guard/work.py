"""Whether an update holds work of its round: what it shares with the others' beyond all that is public or old.

Sites that train in the same round on related images make updates whose new parts are related, with either sign: a
common gradient, the curvature of one loss around one model, and the parts that cancel once the model is near its
optimum. Removed first are the steps that the model took and every site's first and last update, which can be sent
without work. What then remains of a site that did not train has no relation to what the others found in this round.

For two sites with remains r and s, the score z = Σ r_b s_b / √(Σ r_b² s_b²) has mean 0 and variance 1 if the signs of
the entries of either are random: the sign-flip null. The sum T of z² over a site's k others is then nearly χ² with k
degrees of freedom; work adds a noncentrality λ, whatever the signs. A site's e-value of a round is the likelihood ratio
of no work to the least work that counts, which is `LEAST_WORK` of what the others' scores with each other show, and at
most `PLAIN_WORK` standard deviations of T without work: who shows so much works, however much others show. Half
of the evidence is bet on it, so that one round with work does not outweigh the rounds without:
E [(1 + e) / 2] ≤ 1 for a site that works at least so much, and Ville's inequality bounds its false alarms.

Sources: testing by betting, Shafer 2021 (JRSS A); the restarted sum, Shin, Ramdas and Rinaldo 2024 (E-detectors,
New England Journal of Statistics in Data Science).
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

WIDTH = 16384  # of a sketch: inner products of two are within 1 % of the product of their norms
REMEMBERED = 64  # the last steps of the model
REPEATED = 1e-9  # eigenvalues of what is known that are rounding, relative to the largest
NOTHING = 1e-4  # least part of an update, in float32, that is more than rounding
LEAST_WORK = 0.15  # of the others' median noncentrality
PLAIN_WORK = 3.5  # standard deviations √(2k) of T without work: one round without it then outweighs e^6 to 1
FEWEST = 3  # sites in a round, to compare with others
ROUNDS = 3  # that a verdict needs at least, and with work, that end it
TERMS = 300  # of a power series


@dataclass(frozen=True)
class Measurements:
    """A measurement of a round's updates beside their Gram matrix."""

    size: int  # d, of an update
    scores: Tensor  # (n, n) float64 z of each pair, 0: nothing is new; NaN: one of the two is absent
    rests: Tensor | None = None  # (n, n) `Reports.rests` of the updates as they came; None: the method needs none


@dataclass(frozen=True)
class Known:
    """A set of sketches (k, m) float32 of what can be sent without work; m is 0 before the first update."""

    steps: Tensor  # the last steps of the model
    first: Tensor  # (n, m) every site's first update; zero rows: none yet
    last: Tensor  # (n, m) likewise the last

    @classmethod
    def nothing(cls, sites: int) -> "Known":
        """Return the state before round 0."""
        none = torch.zeros(sites, 0)
        return cls(none[:0], none, none)

    def measure(self, updates: Tensor, present: Tensor, last_step: Tensor | None, seed: int) -> tuple["Known", Tensor]:
        """Return what is known after a round, and its scores as `Measurements` has them.

        Args:
            updates: (n, d), as they came.
            present: (n,) bool.
            last_step: (d,) of the model, before the round; None: there is none.
            seed: of sketches.
        """
        now = sketch(updates, seed)
        known = self if self.first.shape[1] else Known(now[:0], torch.zeros_like(now), torch.zeros_like(now))
        if last_step is not None:
            steps = torch.cat([known.steps, sketch(last_step[None], seed)])[-REMEMBERED:]
            known = replace(known, steps=steps)
        scores = pair_scores(now, torch.cat([known.steps, known.first, known.last]), present)
        is_first = present & ~known.first.any(dim=1)
        first = torch.where(is_first[:, None], now, known.first)
        return Known(known.steps, first, torch.where(present[:, None], now, known.last)), scores


def new_parts(updates: Tensor, known: Tensor) -> Tensor:
    """Return ``updates`` (n, m) in float64, without their parts in the span of ``known`` (k, m), unrounded."""
    rest: Tensor = updates.double()
    lengths: Tensor = rest.norm(dim=1)
    there = known[known.any(dim=1)].double()
    if len(there):
        there = there / there.norm(dim=1, keepdim=True)
        inverse = torch.linalg.pinv(there @ there.T, hermitian=True, rtol=REPEATED)
        rest = rest - (rest @ there.T @ inverse) @ there
    return rest.where((rest.norm(dim=1) > NOTHING * lengths)[:, None], 0.0)


def pair_scores(updates: Tensor, known: Tensor, present: Tensor) -> Tensor:
    """Return (n, n) z of ``updates`` (n, m) without their parts in the span of the rows of ``known`` (k, m).

    The diagonal is 0; NaN in rows and columns of sites that are not ``present`` (n,) bool.
    """
    rest = new_parts(updates, known)
    rest = rest / rest.norm(dim=1, keepdim=True).clamp(min=1e-300)
    squares = rest.square()
    scale = (squares @ squares.T).sqrt()
    scores = torch.where(scale > 0, rest @ rest.T / scale.where(scale > 0, 1.0), 0.0).fill_diagonal_(0.0)
    return scores.where(present[:, None] & present, torch.nan)


def shared_parts(scores: Tensor) -> Tensor:
    """Return (n,) mean z² of a site with the others, less 1 that chance gives; 0: absent, or without others.

    What a site's update shares with the others' grows with the images that it trained on: docs/studies/detection.md.
    """
    others = scores.diagonal().isfinite().sum() - 1
    mean = scores.nan_to_num(0.0).square().sum(dim=1) / others.clamp(min=1)
    return torch.where(scores.diagonal().isfinite() & (others > 0), mean - 1, 0.0)


def log_e_values(scores: Tensor) -> Tensor:
    """Return (n,) log likelihood ratio of no work to the least work, infinite if nothing is new.

    The ratio is 0 if nothing can be compared.

    Fewer than half of the sites may have agreed on what to send: as many of a site's largest squares as such a
    coalition could make count as much as the next.
    """
    found = _log_e_values(scores.double().contiguous().numpy().tobytes(), len(scores))
    return torch.tensor(found, dtype=torch.float64)


@lru_cache(maxsize=1024)  # a round asks twice, and a verification plays rounds again, many of them with equal scores
def _log_e_values(content: bytes, sites: int) -> tuple[float, ...]:
    """Return `log_e_values` of scores of so many sites, in float64 bytes."""
    scores = torch.frombuffer(bytearray(content), dtype=torch.float64).view(sites, sites)
    present = scores.diagonal().isfinite()
    count, found = int(present.sum()), torch.zeros(len(scores), dtype=torch.float64)
    if count < FEWEST:
        return tuple(found.tolist())
    squares = scores[present][:, present].square()
    others, cut, values = count - 1, max(0, (count + 1) // 2 - 2), []
    totals = _totals(squares, cut)
    for row in range(count):
        left = torch.arange(count) != row
        theirs = _totals(squares[left][:, left], min(cut, others - 2)) / (others - 1) - 1
        least = min(LEAST_WORK * others * float(theirs.quantile(0.5)), PLAIN_WORK * (2 * others) ** 0.5)
        if not squares[row].any():
            values.append(math.inf if squares.any() else 0.0)
        else:
            values.append(_log_ratio(float(totals[row]), others, least) if least > 0 else 0.0)
    found[present] = torch.tensor(values, dtype=torch.float64)
    return tuple(found.tolist())


def _totals(squares: Tensor, cut: int) -> Tensor:
    """Return (k,) sums of the rows of ``squares`` (k, k), without the diagonal.

    The ``cut`` largest count as much as the next largest.
    """
    own = squares.clone().fill_diagonal_(-1.0).sort(dim=1, descending=True).values[:, :-1]
    return own.minimum(own[:, cut : cut + 1]).sum(dim=1)


def _log_ratio(total: float, degrees: int, noncentrality: float) -> float:
    """Log of the ratio of the densities of χ² and noncentral χ²: λ/2 - log 0F1(; k/2; λT/4)."""
    argument = min(max(noncentrality * total / 4, 1e-300), (TERMS / 2) ** 2)  # beyond, the ratio is 0 anyway
    r, half = torch.arange(TERMS, dtype=torch.float64), degrees / 2
    terms = r * math.log(argument) - torch.lgamma(r + 1) - torch.lgamma(r + half) + math.lgamma(half)
    return noncentrality / 2 - float(torch.logsumexp(terms, dim=0))


@dataclass(frozen=True)
class Evidence:
    """A body of evidence that n sites do not work, and verdicts.

    It is a restarted sum of logarithms, E_t = max(E_{t-1}, 0) + log (1 + e_t) / 2. The chance that it ever reaches
    log (n T / α) in T rounds is at most α for n sites that all work: the bound at which a verdict begins. The verdict
    stands while the sum is there; the sum is then so high that three rounds with work in a row end it.
    """

    log_odds: Tensor  # (n,) E
    against: Tensor  # (n,) bool: a verdict stands

    @classmethod
    def none(cls, sites: int) -> "Evidence":
        """Return the state before round 0."""
        return cls(torch.zeros(sites, dtype=torch.float64), torch.zeros(sites, dtype=torch.bool))

    def after(self, log_e: Tensor, bound: float, permanent: bool) -> "Evidence":
        """Return the evidence after a round; ``log_e`` (n,) of `log_e_values`, 0: nothing was seen.

        ``bound``: log (n T / α).
        """
        bet = (torch.logaddexp(log_e, torch.zeros_like(log_e)) - math.log(2)).clamp(max=bound / ROUNDS)
        most = bound + (ROUNDS - 0.5) * math.log(2)
        odds = (self.log_odds + bet).clamp(min=0, max=most)
        against = odds >= bound
        odds = odds.masked_fill(against & ~self.against, most)
        return Evidence(odds, against | self.against if permanent else against)


def sketch(updates: Tensor, seed: int, width: int = WIDTH) -> Tensor:
    """Return (n, m) count sketch of ``updates`` (n, d): entries ``width`` apart are added with random signs.

    Keeps cosines.
    """
    signs, result = _random_signs(updates.shape[1], seed), torch.zeros_like(updates[:, :width])
    for block, sign in zip(torch.split(updates, width, dim=1), torch.split(signs, width), strict=True):
        result[:, : block.shape[1]] += block * sign
    return result


@lru_cache(maxsize=1)
def _random_signs(size: int, seed: int) -> Tensor:
    """Return (size,) int8, -1 or 1; the same in every round of a run."""
    return torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(seed), dtype=torch.int8) * 2 - 1
