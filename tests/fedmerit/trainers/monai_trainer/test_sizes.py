"""How many numbers the training of a network holds."""

from dataclasses import replace

from fedmerit.configuration.run import TASKS, make_configuration
from fedmerit.trainers.monai_trainer.network_checks import MAPS, count_feature_maps, count_parameters


def test_numbers_of_a_network():
    config = make_configuration("fedavg", "prostate", 1, 0, TASKS["prostate"], {})
    network, training = config.network, replace(config.training, batch_size=6)
    config = replace(config, training=training)
    assert count_feature_maps(config, (32, 48)) == MAPS * network.width * 32 * 48 * 6
    small = replace(config, training=replace(training, batch_size=1))
    assert count_feature_maps(small, (32, 48)) == MAPS * network.width * 32 * 48 * 4  # of evaluation
    of_volumes = replace(config, network=replace(network, patch=(8, 16, 16)))
    assert count_feature_maps(of_volumes, (32, 48)) == MAPS * network.width * 8 * 16 * 16 * 6
    assert count_parameters(config) < count_parameters(
        replace(config, network=replace(network, width=2 * network.width))
    )
