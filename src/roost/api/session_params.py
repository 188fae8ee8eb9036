"""`session_params`: where in a session a request goes on. The names are SGLang's."""

from collections.abc import Mapping

import msgspec

from roost.api.body import NOTHING_ELSE, parse, refuse_unknown, short_text
from roost.core.errors import RequestError
from roost.core.request import RequestId
from roost.frontend import SessionWish

# As long as a rid may be.
MAX_ID_CHARS = 256
_WITHIN = "session_params"


class SessionFields(msgspec.Struct, frozen=True):
    """null is the default everywhere but for the id, which must be there."""

    id: str
    rid: str | None = None
    offset: int | None = None
    replace: bool | None = None
    drop_previous_output: bool | None = None


def session_wish(
    given: Mapping[str, msgspec.Raw] | None, session_id: str | None
) -> SessionWish | None:
    """What the two fields of a call say of its session. Raises RequestError naming the field."""
    if given is None:
        if session_id is not None:
            raise RequestError(
                "session_id needs session_params, which say where in the session to go on.",
                param="session_id",
            )
        return None
    refuse_unknown(given, SessionFields, NOTHING_ELSE, within=_WITHIN)
    fields = parse(msgspec.json.encode(given), SessionFields, within=_WITHIN)
    short_text(fields.id, f"{_WITHIN}.id", MAX_ID_CHARS)
    short_text(fields.rid, f"{_WITHIN}.rid", MAX_ID_CHARS)
    if session_id not in (None, fields.id):
        raise RequestError(
            "session_id and session_params.id name two sessions; a request has one.",
            param="session_id",
        )
    return SessionWish(
        session_id=fields.id,
        parent=None if fields.rid is None else RequestId(fields.rid),
        offset=fields.offset or 0,
        replaces=bool(fields.replace),
        drops_output=bool(fields.drop_previous_output),
    )
