"""Replies as rows of tensors: values by site, NaN for who is away, what is said of others at their places."""

import torch

from fedmerit.federation.round_updates import stack_replies
from fedmerit.methods.registry import build_method
from fedmerit.wire.messages import Reply

SITES = ["Alder", "Birch", "Cedar"]


def reply(number, **more):
    return Reply(0, torch.full((4,), float(number)), {}, 10 * number, (), **more)


def test_a_row_is_a_site_and_who_is_away_is_zero_or_not_known():
    method = build_method("fedce", {})
    replies = [reply(1, values={"cosine": 0.5}), None, reply(3, values={"minus_error": 0.25})]
    updates, reports = stack_replies(replies, SITES, 4, method)
    assert updates.tolist() == [[1.0] * 4, [0.0] * 4, [3.0] * 4]
    assert reports.num_samples.tolist() == [10, 0, 30]
    assert reports.present.tolist() == [True, False, True]
    assert reports.values["cosine"].nan_to_num(-1).tolist() == [0.5, -1, -1]
    assert reports.values["minus_error"].nan_to_num(-1).tolist() == [-1, -1, 0.25]
    assert reports.products.tolist() == [[4, 0, 12], [0, 0, 0], [12, 0, 36]]


def test_what_a_site_says_of_another_stands_in_its_row_and_the_others_column():
    method = build_method("cycle", {})
    quantity = next(iter(method.peer_quantities))
    said = {quantity: {"Cedar": 0.5}}
    pairs = stack_replies([reply(1, pairs=said), reply(2), reply(3)], SITES, 4, method)[1].pairs[quantity]
    assert pairs.nan_to_num(-1).tolist() == [[-1, -1, 0.5], [-1, -1, -1], [-1, -1, -1]]


def test_vectors_beside_the_update_are_stacked_likewise():
    method = build_method("scaffold", {})
    name = method.vectors[0]
    vectors = stack_replies([None, reply(2, vectors={name: torch.arange(4.0)}), None], SITES, 4, method)[1].vectors[
        name
    ]
    assert vectors.tolist() == [[0.0] * 4, [0.0, 1.0, 2.0, 3.0], [0.0] * 4]
