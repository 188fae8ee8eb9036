"""What every route stands on: the frontend, the settings, and the names that the model has."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final
from uuid import uuid4

from roost.core.clock import Clock
from roost.core.config import ServeConfig
from roost.core.errors import ModelNotFound
from roost.frontend import Frontend

# What SGLang's clients send when they were told no name.
DEFAULT_NAME: Final = "default"


@dataclass(frozen=True, slots=True)
class Service:
    """Shared by the routes of one process. `reasons`: where each setting's value comes from."""

    frontend: Frontend
    config: ServeConfig
    clock: Clock
    reasons: Mapping[str, str]

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names that clients may use, the first of them the one that answers carry."""
        given = self.config.model
        return given.served_model_name or (name_of_model(given.model),)

    def served_name(self, asked: str | None) -> str:
        """The name to answer with. Raises ModelNotFound."""
        names = self.model_names
        if asked is None or asked == DEFAULT_NAME:
            return names[0]
        if asked not in names:
            raise ModelNotFound(
                f"The model {asked[:100]!r} does not exist; this server has {', '.join(names)}.",
                param="model",
            )
        return asked


def name_of_model(model: str) -> str:
    """A name for the `model` setting: a file's or folder's own name, else the setting as it is."""
    path = PurePath(model)
    if path.suffix == ".gguf" and ":" not in model:
        return path.stem
    return path.name if path.is_absolute() or model.startswith(".") else model


def request_id(given: str | None, prefix: str = "") -> str:
    """The client's id of a call, which the frontend checks, or a new one."""
    return prefix + uuid4().hex if given is None else given


def id_headers(rid: str) -> dict[str, str]:
    """The header that names a call. Headers are ASCII; an id that is not stays in the body."""
    return {"x-request-id": rid} if rid.isascii() else {}
