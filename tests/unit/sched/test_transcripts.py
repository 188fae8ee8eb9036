from pathlib import Path

import pytest
from tests.transcripts.player import replay

TRANSCRIPTS = sorted((Path(__file__).parents[2] / "transcripts" / "sched").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_scheduler_decides_as_written(path: Path) -> None:
    assert replay(path.read_text()) == path.read_text()


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 9
