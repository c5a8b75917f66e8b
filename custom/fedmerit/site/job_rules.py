"""Check whether a site's images fit a run."""

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.data import preparation_digest
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.site.enrolment import PREPARED_OTHERWISE, is_prepared_otherwise
from fedmerit.trainers.monai.data import SiteFolder


def require_compatible_images(config: RunConfiguration, folder: SiteFolder) -> None:
    """`BadInput` if the images of ``folder`` do not fit the run's network."""
    from fedmerit.trainers.monai.network_checks import check_image_size  # it takes seconds to import MONAI

    expected = (config.task, config.network.in_channels, config.network.labels)
    if (folder.task, folder.channels, folder.labels) != expected:
        raise BadInput(
            f"site {folder.name}: task, channels and labels are {(folder.task, folder.channels, folder.labels)}, "
            f"the run expects {expected}"
        )
    if is_prepared_otherwise(config, preparation_digest(folder.info)):
        raise BadInput(f"site {folder.name}: its {PREPARED_OTHERWISE}; prepare them as the other sites")
    check_image_size(config.network, folder.image_size)
