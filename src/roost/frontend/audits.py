"""Audits: what was not heard of for long is asked for, since a message may be lost. No IO."""

from roost.core.request import Origin, RequestId
from roost.frontend.ledger import Ledger
from roost.wire.messages import Audit, Audited


class Audits:
    """Asks about the requests of a ledger, and understands the engine's answers."""

    def __init__(self, ledger: Ledger, origin: Origin, after_s: float) -> None:
        """after_s: how long a request is silent before it is asked for, and asked for again."""
        self._ledger = ledger
        self._origin = origin
        self._after_s = after_s
        self._last_number = 0

    def due(self, now_s: float) -> Audit | None:
        """The question that is due now, if one is."""
        silent = [
            life
            for life in self._ledger.lives()
            if life.is_sent and now_s >= max(life.heard_s, life.audited_s) + self._after_s
        ]
        if not silent:
            return None
        self._last_number += 1
        for life in silent:
            life.audit, life.audited_s = life.audit or self._last_number, now_s
        serials = tuple(life.envelope.serial for life in silent)
        return Audit(self._origin, self._last_number, serials)

    def lost(self, answer: Audited) -> list[RequestId]:
        """What the engine does not hold, and has not been heard of since it was asked for."""
        missing = frozenset(answer.missing)
        return [
            life.envelope.rid
            for life in self._ledger.lives()
            if life.envelope.serial in missing and 0 < life.audit <= answer.number
        ]
