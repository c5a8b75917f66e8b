"""Cross evaluation: one voice each, never on its own; levels do not matter, one liar neither."""

import pytest
import torch

from fedmerit.guard.cross_evaluation import aggregate_ratings, distances, find_outlier_raters, voices

NAN = float("nan")
ALL = torch.ones(5, dtype=torch.bool)


def ratings(seed=0):
    """(5, 5) of raters of different levels, sites of different worth, a little noise."""
    random = torch.Generator().manual_seed(seed)
    worth, levels = torch.linspace(0.4, 0.6, 5).double(), 0.2 * torch.rand(5, generator=random).double()
    scores = worth + levels[:, None] + 0.005 * torch.randn(5, 5, generator=random).double()
    return scores.fill_diagonal_(NAN), worth


def judged(scores, heard=ALL):
    voice, offsets = voices(scores, heard)
    return aggregate_ratings(voice, offsets, scores)


def test_raters_of_any_level_find_the_same_differences():
    scores, worth = ratings()
    found = judged(scores)
    assert torch.allclose(found - found.mean(), worth - worth.mean(), atol=0.03)
    moved = judged(scores + torch.tensor([0.0, 0.1, -0.1, 0.2, 0.05]).double()[:, None])
    assert torch.allclose(moved - moved.mean(), found - found.mean(), atol=1e-9)


def test_what_a_site_says_does_not_move_what_the_others_find_of_it():
    scores, _ = ratings()
    lied = scores.clone()
    lied[4, :4] = torch.tensor([0.0, 1.0, 0.0, 0.0]).double()
    share, honest = (one[4] / one.sum() for one in (judged(lied), judged(scores)))
    assert float(share - honest) == pytest.approx(0, abs=0.01)


def test_one_who_lies_stands_apart_and_honest_raters_do_not():
    scores, _ = ratings()
    lied = scores.clone()
    lied[4, :4] = torch.tensor([0.0, 1.0, 0.0, 0.0]).double()
    for given, expected in ((scores, [False] * 5), (lied, [False] * 4 + [True])):
        voice, offsets = voices(given, ALL)
        away = distances(given, offsets, aggregate_ratings(voice, offsets, given), ALL)
        assert find_outlier_raters(away).tolist() == expected


def test_a_raters_distance_is_the_mean_difference_from_what_all_found_once_levels_are_one():
    scores = torch.tensor([[NAN, 0.4, 0.6], [0.7, NAN, 0.8], [0.5, 0.5, NAN]]).double()
    judged, offsets = torch.tensor([0.5, 0.5, 0.6]).double(), torch.tensor([0.0, -0.2, 0.1]).double()
    heard = torch.tensor([True, True, False])  # |-.1|, |0|; |0|, |0|; not heard
    assert distances(scores, offsets, judged, heard).tolist() == pytest.approx([0.05, 0.0, NAN], nan_ok=True, abs=1e-6)


def test_who_is_rated_by_nobody_is_unknown_and_who_is_not_heard_says_nothing():
    scores, _ = ratings()
    scores[:, 2] = NAN
    assert judged(scores).isnan().tolist() == [False, False, True, False, False]
    heard = ALL.clone()
    heard[0] = False
    assert (voices(scores, heard)[0][:, 0] == 0).all()
