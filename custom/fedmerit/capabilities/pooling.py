"""Methods that are no federation: all sites' training images in one place."""


class PoolsImages:
    """The capability: every site's update is that of one training on the images of all, which one machine holds."""
