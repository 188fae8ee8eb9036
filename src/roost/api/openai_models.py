"""`/v1/models`: what is served, under the names that clients may use."""

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

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


def routes(service: Service) -> list[Route]:
    """GET `/v1/models` and `/v1/models/{name}`; a name may hold slashes."""

    def card(name: str) -> ModelCard:
        facts = service.frontend.facts
        return ModelCard(name, facts.loaded_s, facts.model_path, facts.max_context_tokens)

    async def models(_: Request) -> Response:
        listed = ModelList([card(name) for name in service.model_names])
        return Response(msgspec.json.encode(listed), media_type="application/json")

    async def model(request: Request) -> Response:
        found = card(service.served_name(request.path_params["name"]))
        return Response(msgspec.json.encode(found), media_type="application/json")

    return [Route("/v1/models", models), Route("/v1/models/{name:path}", model)]
