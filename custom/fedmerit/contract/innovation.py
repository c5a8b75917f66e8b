"""Innovation: the part of an update that cannot be forecast from the models that were broadcast before it.

Without work a site can send any function of what it received. So the server fits to every update u of a round, after it
came, the best forecast from broadcast models: in each tensor the least-squares fit X c of `COLUMNS` functions of the
last steps, the current and the first model. No such function has anything left of it then, up to what these columns
do not span. The rest r = u - X c is what the site has found.

The rest is no evidence of free riding: updates of honest sites are partly forecastable, and noise is not. It is worth
what it adds by itself: a_i = U(F + p_i r_i) - U(F), with the site's weight p_i, the new model without all rests
F = M - Σ_j p_j r_j, and a utility U on images that the site did not choose. A rest longer than `LONGEST` medians of the
others' is shortened to that before, as more of the same and noise would else be paid. The round's gain G = max(0,
U(M) - U(F)) is divided by these: v_i = G a_i / Σ_j |a_j|, and values are summed over rounds. In late rounds updates
pull in opposite directions and the model hardly gains; without the division such rounds would count as much as those
that gain.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmerit.contract.method import Reports
from fedmerit.contract.vectors import BLOCK, aggregate, norms, ratio

STEPS = 8  # last steps of the model whose moments are columns
LAGS = 5  # of them that are columns themselves
COLUMNS = 22
LONGEST = 1.5  # a rest that is valued, in medians of the others' lengths; chosen on seeds that no page reports
LEAST_TENSOR = 1000  # entries; smaller tensors are fitted together
RIDGE = 1e-6  # of the Gram matrix of columns of length 1
ROUNDING = 1e-4  # least part of an update, in float32, that is more than rounding


@dataclass(frozen=True)
class Broadcast:
    """The models that were broadcast, as far as forecasts use them."""

    first: Tensor  # (d,) the model before round 0
    last: Tensor  # (d,) the current one
    steps: Tensor  # (k, d) its last steps, k <= `STEPS`, the latest first

    @classmethod
    def begin(cls, model: Tensor) -> "Broadcast":
        """Return the state before round 0; ``model`` is (d,)."""
        return cls(model, model, model.new_zeros(0, len(model)))

    def after(self, model: Tensor) -> "Broadcast":
        """Return the state once ``model`` (d,) is broadcast."""
        steps = torch.cat([(model - self.last)[None], self.steps])[:STEPS]
        return replace(self, last=model, steps=steps)


def find_rests(updates: Tensor, broadcast: Broadcast, tensor_sizes: Sequence[int]) -> Tensor:
    """Return (n, d) what is left of ``updates`` (n, d) without their forecasts, in their dtype.

    A rest that may be rounding is 0.

    Args:
        updates: of a round.
        broadcast: the models until then.
        tensor_sizes: entries of each tensor of the vector, in order; they sum to d.
    """
    pieces = list(_pieces(tensor_sizes))
    count, n = 1 + max((piece for piece, _ in pieces), default=0), len(updates)
    gram = torch.zeros(count, COLUMNS, COLUMNS, dtype=torch.float64)
    onto = torch.zeros(count, COLUMNS, n, dtype=torch.float64)
    for piece, place in pieces:
        columns = _columns(broadcast, place)
        gram[piece] += columns @ columns.T
        onto[piece] += columns @ updates[:, place].double().T
    fits = [_solve(g, b) for g, b in zip(gram, onto, strict=True)]
    rests, lengths = torch.empty_like(updates), torch.zeros(2, n, dtype=torch.float64)
    for piece, place in pieces:
        own = updates[:, place].double()
        rest = own - fits[piece].T @ _columns(broadcast, place)
        lengths += torch.stack([rest.square().sum(dim=1), own.square().sum(dim=1)])
        rests[:, place] = rest.to(updates.dtype)
    rests[lengths[0] <= ROUNDING**2 * lengths[1]] = 0.0
    return rests


def rest_shares(reports: Reports) -> Tensor:
    """Return (n,) the part of each update's length that its rest has, 0 to 1; 0 of an update of zeros."""
    assert reports.products is not None
    assert reports.rests is not None
    return ratio(norms(reports.rests), norms(reports.products)).clamp(max=1.0)


def _pieces(tensor_sizes: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Yield the number of the fit and the place of every block: a fit for each large tensor, one for all others."""
    start, large = 0, 0
    for size in tensor_sizes:
        large += size >= LEAST_TENSOR
        for begin in range(start, start + size, BLOCK):
            yield large if size >= LEAST_TENSOR else 0, slice(begin, min(begin + BLOCK, start + size))
        start += size


def _columns(broadcast: Broadcast, place: slice) -> Tensor:
    """Return (`COLUMNS`, m) float64 functions of the models at a place; those of steps are 0 before there are any."""
    model, steps = broadcast.last[place].double(), broadcast.steps[:, place].double()
    nothing = torch.zeros_like(model)
    lags = [*steps[:LAGS], *[nothing] * (LAGS - len(steps))]
    last, old = lags[0], steps if len(steps) else nothing[None]
    mean, power = old.mean(dim=0), old.square().mean(dim=0).sqrt()
    scaled = mean / old.std(dim=0, correction=0).clamp(min=1e-12)
    sign, root = last.sign(), last.abs().sqrt()
    return torch.stack([
        *lags, mean, mean * scaled.abs(), mean * mean.abs(), scaled.tanh(), mean.sign() * mean.abs().sqrt(),
        sign * root, last.abs(), sign, sign * power, power, last * model.abs(),
        model, model * model.abs(), model.sign(), model.abs(), broadcast.first[place].double(), torch.ones_like(model),
    ])  # fmt: skip


def _solve(gram: Tensor, onto: Tensor) -> Tensor:
    """Return (columns, n) coefficients of the least-squares fit, from inner products of the columns and with updates.

    Columns of zeros have none.
    """
    lengths = gram.diagonal().sqrt()
    there = lengths > 0
    found, scale = torch.zeros_like(onto), lengths[there]
    if there.any():
        unit = gram[there][:, there] / scale[:, None] / scale + RIDGE * torch.eye(len(scale), dtype=torch.float64)
        found[there] = torch.linalg.solve(unit, onto[there] / scale[:, None]) / scale[:, None]
    return found


def candidate_models(model: Tensor, weights: Tensor, rests: Tensor) -> Tensor:
    """Return (k + 2, d) the models of a round to evaluate: F, F + p_i r_i for each of k sites, r_i shortened, and M.

    Args:
        model: (d,) M, the new model.
        weights: (k,) float64, p.
        rests: (k, d) r, of `find_rests`.
    """
    forecast, counted = aggregate(model, -weights, rests), weights * _shorten(rests.double().norm(dim=1))
    singly = [aggregate(forecast, p[None], r[None]) for p, r in zip(counted, rests, strict=True)]
    return torch.stack([forecast, *singly, model])


def _shorten(lengths: Tensor) -> Tensor:
    """Return (k,) factors, at most 1, that hold ``lengths`` (k,) to `LONGEST` upper medians of the others; 1 for two.

    The upper ones, as of two others one may have nothing; a median of 0 holds nobody.
    """
    k = len(lengths)
    if k < 3:
        return torch.ones_like(lengths)
    others = lengths.expand(k, k)[~torch.eye(k, dtype=torch.bool)].view(k, k - 1)
    longest = LONGEST * others.kthvalue((k + 1) // 2, dim=1).values
    return torch.where((longest > 0) & (lengths > longest), longest / lengths, 1.0)


def divide_gain(additions: Tensor, gain: Tensor) -> Tensor:
    """Return the factor G / Σ_j |a_j| by which a round's additions (n, ...) count; 0 if the round gained nothing.

    ``gain`` is G, (...); so is what is returned.
    """
    return gain.clamp(min=0.0) / additions.abs().sum(dim=0).clamp(min=torch.finfo(torch.float64).tiny)


@dataclass(frozen=True)
class Innovations:
    """The values of n sites' rests, by round and patient.

    Patients are those of R raters, at most K each; the server with images of its own is the only one then.
    """

    gains: Tensor  # (T, n, R, K) float64, of the rests of a round, weighted so that sums over patients are means
    patients: Tensor  # (R,) of each rater; 0: it has not rated yet
    began: Tensor  # (n,) first round of each site; -1: none yet

    def totals(self, since: int = 0) -> tuple[Tensor, Tensor]:
        """Return (n,) values summed over the rounds from ``since`` on, and (n,) their standard errors over patients."""
        sums = self.gains[since:].sum(dim=0)  # (n, R, K)
        there = torch.arange(sums.shape[2]) < self.patients[:, None]  # (R, K)
        count = self.patients.clamp(min=1).double()
        mean = sums.sum(dim=2, keepdim=True) / count[:, None]
        # of a single patient no deviation is known: all of its value counts as one
        deviations = torch.where(count[:, None] > 1, sums - mean, sums).masked_fill(~there, 0.0)
        variances = deviations.square().sum(dim=2) * count / (count - 1).clamp(min=1)
        return sums.sum(dim=(1, 2)), variances.sum(dim=1).sqrt()

    def shares(self, credit: Tensor) -> Tensor:
        """Return (n,) shares of pay, which sum to 1, or to 0 if nobody added anything.

        A site is paid by its value, if that is positive. One that joined late has the share of what all added since
        then, times the share of rounds since then; all others divide the rest.

        ``credit`` (n,), 0 to 1, multiplies each amount.
        """
        rounds, late = len(self.gains), self.began > self.began[self.began >= 0].min()
        amounts = credit * self.totals()[0].clamp(min=0)
        found = torch.zeros_like(amounts)
        for row in late.nonzero().flatten().tolist():
            since = int(self.began[row])
            added = credit * self.totals(since)[0].clamp(min=0)
            if added[row] > 0:
                found[row] = added[row] / added.sum() * (rounds - since) / rounds
        found /= found.sum().clamp(min=1.0)
        others = amounts.masked_fill(late, 0.0)
        if others.sum() > 0:
            return found + (1 - found.sum()) * others / others.sum()
        return found / found.sum() if found.any() else found
