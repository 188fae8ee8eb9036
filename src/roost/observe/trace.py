"""Trace ids: W3C Trace Context (https://www.w3.org/TR/trace-context/), version 00."""

import re

# version 00: trace id (16 bytes, not all zero), parent id (8 bytes, not all zero), flags.
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def trace_of(traceparent: str | None) -> str:
    """The header's value if it is well formed, else "": a bad one is ignored, as the spec asks."""
    if traceparent is None or _TRACEPARENT.fullmatch(traceparent.strip()) is None:
        return ""
    return traceparent.strip()


def trace_id_of(traceparent: str) -> str:
    """The trace id within a checked traceparent; "" for none."""
    return traceparent[3:35]
