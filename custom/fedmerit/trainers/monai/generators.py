"""Generators of random numbers of a site's training."""

import hashlib

import numpy as np
import torch

from fedmerit.seeds import random_seed

WORDS = 624  # 32-bit words of the state of torch's generator on a CPU, MT19937
FIRST = 24  # byte of `torch.Generator.get_state` at which these begin, each in 8 bytes


def make_generator(seed: int | str, device: torch.device | None = None) -> torch.Generator:
    """Return a generator on a device, None: the CPU.

    A number seeds it as torch does. On the CPU torch uses 32 bits of that, which can be tried out; so the state follows
    from a text, which holds a secret, as a whole: by SHAKE-256.
    """
    generator = torch.Generator(device or "cpu")
    if isinstance(seed, int):
        return generator.manual_seed(seed)
    generator.manual_seed(random_seed(seed))
    if generator.device.type == "cpu":
        state = generator.get_state()
        words = np.frombuffer(hashlib.shake_256(seed.encode()).digest(4 * WORDS), "<u4").astype(np.uint64)
        state[FIRST : FIRST + 8 * WORDS] = torch.from_numpy(words.view(np.uint8))
        generator.set_state(state)
    return generator
