"""`/v1/models`: what is served, under the names that clients may use."""

from typing import Literal

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from roost.api.service import Service


class ModelCard(msgspec.Struct, frozen=True):
    id: str
    created: int
    root: str
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "roost"
    parent: None = None


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: Literal["list"] = "list"


def router(service: Service) -> APIRouter:
    """GET `/v1/models` and `/v1/models/{name}`; a name may hold slashes."""
    routes = APIRouter()
    created = int(service.clock.unix_s())

    def card(name: str) -> ModelCard:
        facts = service.frontend.facts
        return ModelCard(name, created, facts.model_path, facts.max_context_tokens)

    @routes.get("/v1/models", response_model=None)
    async def models() -> Response:
        listed = ModelList([card(name) for name in service.model_names])
        return Response(msgspec.json.encode(listed), media_type="application/json")

    @routes.get("/v1/models/{name:path}", response_model=None)
    async def model(name: str) -> Response:
        found = card(service.served_name(name))
        return Response(msgspec.json.encode(found), media_type="application/json")

    return routes
