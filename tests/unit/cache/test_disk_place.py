"""A folder and a size, in one text."""

from pathlib import Path

import pytest

from roost.cache.disk_place import disk_place
from roost.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "folder", "max_bytes"),
    [
        ("/var/kv:2GiB", "/var/kv", 2 << 30),
        ("kv:1.5 mib", "kv", 3 << 19),
        ("a:b:100000", "a:b", 100000),
        ("kv:64KiB", "kv", 65536),
        ("kv:1TiB", "kv", 1 << 40),
        ("kv:7B", "kv", 7),
    ],
)
def test_a_folder_and_a_size(text: str, folder: str, max_bytes: int) -> None:
    place = disk_place(text)
    assert (place.folder, place.max_bytes) == (Path(folder), max_bytes)


@pytest.mark.parametrize("text", ["/var/kv", ":2GiB", "kv:", "kv:2GB", "kv:-1", "kv:GiB", "kv:1e9"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="kv_disk must be DIR:SIZE"):
        disk_place(text)
