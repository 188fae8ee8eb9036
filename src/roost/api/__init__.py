"""The api room: HTTP in, JSON and server-sent events out, in the dialects that clients speak.

Takes an open Frontend and the settings.
Gives an ASGI application.
"""

from roost.api.app import create_app
from roost.api.doorman import Doorman

__all__ = ["Doorman", "create_app"]
