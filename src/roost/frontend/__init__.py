"""The frontend room: from what a client asks to what it gets, in the process that serves it.

Takes asks (text, ids or chat messages) and the engine's events from a wire channel.
Gives heads and pieces of answers, exactly one ending each, and refusals before the first byte.
"""

from roost.frontend.answers import Answers
from roost.frontend.ask import (
    Ask,
    ChatPrompt,
    Prompt,
    SessionWish,
    TextPrompt,
    TokenPrompt,
    Wish,
)
from roost.frontend.core import FrontCore
from roost.frontend.frontend import Frontend
from roost.frontend.intake import TextTools
from roost.frontend.piece import AnswerHead, Piece
from roost.frontend.settings import FrontendSettings

__all__ = [
    "AnswerHead",
    "Answers",
    "Ask",
    "ChatPrompt",
    "FrontCore",
    "Frontend",
    "FrontendSettings",
    "Piece",
    "Prompt",
    "SessionWish",
    "TextPrompt",
    "TextTools",
    "TokenPrompt",
    "Wish",
]
