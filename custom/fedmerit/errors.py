"""What a user is told: input that cannot be used, and runs that did not come to their end."""


class BadInput(ValueError):
    """A file, site or parameter is unusable; the message names it, says what was expected and what to do."""


class RunFailed(RuntimeError):
    """A run did not come to its end; the message says in which round, why, and where the log is."""


class MemoryLost(BadInput):
    """A site no longer has what it remembered of the round before; the server sends it everything in the next."""
