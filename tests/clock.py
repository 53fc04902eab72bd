"""A clock that the test moves."""


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now
