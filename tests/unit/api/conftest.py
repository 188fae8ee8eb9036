from collections.abc import Iterator

import pytest
from tests.unit.api.rig import Rig, open_rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    with open_rig() as opened:
        yield opened
