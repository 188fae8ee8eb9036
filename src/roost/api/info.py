"""What runs here: the model, the resolved settings, and how busy the engine is."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import roost
from roost.api.service import Service
from roost.core.config import all_settings, shown, value_of


class ModelInfo(msgspec.Struct, frozen=True):
    """SGLang's names; `max_model_len` as in vLLM's model list."""

    model_path: str
    tokenizer_path: str
    weight_version: str
    model_type: str
    architectures: list[str]
    max_model_len: int
    vocab_size: int
    is_generation: bool = True
    preferred_sampling_params: None = None
    has_image_understanding: bool = False
    has_audio_understanding: bool = False


def routes(service: Service) -> list[Route]:
    """GET `/model_info`, `/server_info` (and their older names), `/v1/loads` and `/get_load`."""

    async def model_info(_: Request) -> Response:
        facts = service.frontend.facts
        info = ModelInfo(
            model_path=facts.model_path,
            tokenizer_path=facts.model_path,
            weight_version=facts.weight_version,
            model_type=facts.model_type,
            architectures=[facts.architecture],
            max_model_len=facts.max_context_tokens,
            vocab_size=facts.vocab_size,
        )
        return _json(info)

    async def server_info(_: Request) -> Response:
        return _json(_server_info(service))

    async def loads(_: Request) -> Response:
        return _json([_load(service)])

    return [
        Route("/model_info", model_info),
        Route("/get_model_info", model_info),
        Route("/server_info", server_info),
        Route("/get_server_info", server_info),
        Route("/v1/loads", loads),
        Route("/get_load", loads),
    ]


def _server_info(service: Service) -> dict[str, object]:
    """The settings as they are (secrets only as `(set)`), why, and the engine's state."""
    facts = service.frontend.facts
    values: dict[str, object] = {}
    for setting in all_settings():
        value = value_of(service.config, setting)
        values[setting.name] = shown(setting, value) if setting.is_secret else value
    return {
        **values,
        "version": roost.__version__,
        "model_path": facts.model_path,
        "served_model_name": service.model_names[0],
        "reasons": dict(service.reasons),
        "internal_states": [
            {
                **_load(service),
                "max_total_num_tokens": facts.num_kv_tokens,
                "kv_dtype": facts.kv_dtype,
                "isa": facts.isa,
                "threads": facts.num_threads,
                "max_running_requests": service.config.engine.max_running_requests,
            }
        ],
    }


def _load(service: Service) -> dict[str, object]:
    load = service.frontend.load
    return {
        "dp_rank": 0,
        "num_reqs": load.num_running + load.num_waiting,
        "num_running_reqs": load.num_running,
        "num_waiting_reqs": load.num_waiting,
        "num_used_tokens": load.num_used_tokens,
        "num_cached_tokens": load.num_cached_tokens,
        "num_disk_tokens": load.num_disk_tokens,
        "num_total_tokens": load.num_kv_tokens,
        "num_steps": load.num_steps,
        "generated_tokens_total": load.generated_tokens_total,
    }


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
