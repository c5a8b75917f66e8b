"""The one exception for input that cannot be used."""


class BadInput(ValueError):
    """A file, site or parameter is unusable; the message names it, says what was expected and what to do."""
