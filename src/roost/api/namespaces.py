"""Which requests share what they compute: those of one `cache_salt` and one `extra_key`."""

from typing import Final

from roost.api.body import short_text

MAX_NAME_CHARS: Final = 256


def namespace_of(cache_salt: str | None, extra_key: str | None) -> str:
    """Raises RequestError for a name that is empty or too long. With neither: the empty one.

    No two pairs give the same one: the length says where the first ends.
    """
    salt = short_text(cache_salt, "cache_salt", MAX_NAME_CHARS) or ""
    extra = short_text(extra_key, "extra_key", MAX_NAME_CHARS) or ""
    return f"{len(salt)}:{salt}{extra}" if salt or extra else ""
