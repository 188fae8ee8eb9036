"""What is logged in a simulated house, kept as data."""

import logging


class LineKeeper(logging.Handler):
    """Keeps (rid, outcome, level) of each line of an ending."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str, int]] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = record.__dict__
        self.lines.append((str(fields["rid"]), str(fields["outcome"]), record.levelno))


class AllLines(logging.Handler):
    """Keeps what every other logger of roost says: (level, message)."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, record.getMessage()))
