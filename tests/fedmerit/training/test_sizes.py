"""How many numbers the training of a network holds."""

from dataclasses import replace

from fedmerit.configuration.run import TASKS, make_configuration
from fedmerit.training.sizes import MAPS, maps_of, parameters_of


def test_numbers_of_a_network():
    config = make_configuration("fedavg", "prostate", 1, 0, TASKS["prostate"], {})
    network, training = config.network, replace(config.training, batch_size=6)
    config = replace(config, training=training)
    assert maps_of(config, (32, 48)) == MAPS * network.width * 32 * 48 * 6
    small = replace(config, training=replace(training, batch_size=1))
    assert maps_of(small, (32, 48)) == MAPS * network.width * 32 * 48 * 4  # of evaluation
    of_volumes = replace(config, network=replace(network, patch=(8, 16, 16)))
    assert maps_of(of_volumes, (32, 48)) == MAPS * network.width * 8 * 16 * 16 * 6
    assert parameters_of(config) < parameters_of(replace(config, network=replace(network, width=2 * network.width)))
