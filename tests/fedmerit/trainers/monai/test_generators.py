"""Generators of a site's training: all of a secret counts, and numbers seed as torch does."""

import numpy as np
import torch

from fedmerit.trainers.monai.generators import FIRST, WORDS, make_generator


def words_of(generator: torch.Generator) -> np.ndarray:
    return np.frombuffer(generator.get_state().numpy().tobytes()[FIRST : FIRST + 8 * WORDS], "<u8")


def test_number_seeds_as_torch_does():
    assert torch.equal(make_generator(7).get_state(), torch.Generator().manual_seed(7).get_state())
    words = np.random.RandomState(7).get_state()[1]
    assert (words_of(make_generator(7)) == words).all()  # they lie where we think


def test_secret_fills_the_whole_state():
    first, other = make_generator("0/A/secret/0"), make_generator("0/A/Secret/0")
    assert np.mean(words_of(first) != words_of(other)) > 0.99
    tried = torch.Generator().manual_seed(first.initial_seed())  # 32 bits of a seed do not give the order
    assert not torch.equal(torch.randperm(50, generator=tried), torch.randperm(50, generator=first))


def test_generator_of_a_secret_repeats_and_continues_from_its_state():
    first, again = make_generator("secret"), make_generator("secret")
    drawn = torch.rand(1000, generator=first)
    assert torch.equal(drawn, torch.rand(1000, generator=again))
    assert 0.45 < float(drawn.mean()) < 0.55
    state = first.get_state()
    ahead = torch.randn(10, generator=first)
    again.set_state(state)
    assert torch.equal(ahead, torch.randn(10, generator=again))
