"""The smallest network that trains: every run of these tests has it, unless its test is about networks."""

TINY = {"architecture": "unet", "width": "4", "depth": "2", "residual_units": "0", "batch_size": "8"}


def flags(**settings: object) -> tuple[str, ...]:
    """Return the options of ``fedmerit run`` for the tiny network and further settings."""
    return tuple(text for name, value in (TINY | settings).items() for text in ("--set", f"{name}={value}"))
