"""One tree of errors. What the caller did wrong raises from here, with facts as fields.

A shortage is `None`, a bug is an assertion; neither belongs in this tree. `code` is stable and
machine-readable, `http_status` is what an HTTP front answers with when nothing was sent yet.

    RoostError
    ├── ConfigError              a flag, variable or config file is wrong
    ├── ModelError               a model's files are missing, broken or not supported
    │   └── UnsupportedModel     well formed, but not (yet) something roost runs
    └── RequestError   400       the client's request cannot be served as it stands
        ├── PromptTooLong        longer than the context
        ├── TooManyTokens        prompt + max_new_tokens over the context, or over the whole KV pool
        ├── DuplicateRequest     the rid is in use
        ├── NotFound       404   no such thing
        │   └── ModelNotFound    no model of that name
        ├── TooLarge       413   the body
        └── Refused              by the state of the server, not by the request
            ├── QueueFull        503
            ├── ShuttingDown     503
            ├── DeadlinePassed   504
            └── EngineFault      500
"""


class RoostError(Exception):
    """Everything that roost raises on purpose."""

    code: str = "internal"
    http_status: int = 500

    @property
    def message(self) -> str:
        return str(self)


class ConfigError(RoostError):
    """A setting is wrong. The message names the setting, its value, and where it came from."""

    code = "config"


class ModelError(RoostError):
    """A model's file is missing, truncated, corrupt or inconsistent."""

    code = "model"


class UnsupportedModel(ModelError):
    """The file is well formed, but needs something that roost does not have."""

    code = "unsupported_model"


class RequestError(RoostError):
    """The request cannot be served as it stands. `param` is the field at fault, if one is."""

    code = "invalid_request"
    http_status = 400

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLong(RequestError):
    code = "context_length_exceeded"

    def __init__(self, *, num_prompt_tokens: int, max_context_tokens: int) -> None:
        super().__init__(
            f"The input ({num_prompt_tokens} tokens) is longer than the model's context length "
            f"({max_context_tokens} tokens).",
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.max_context_tokens = max_context_tokens


class TooManyTokens(RequestError):
    """Prompt and answer together do not fit: into the context, or into the whole KV pool."""

    code = "context_length_exceeded"

    def __init__(self, *, num_prompt_tokens: int, max_new_tokens: int, limit_tokens: int) -> None:
        super().__init__(
            "Requested token count exceeds the model's maximum context length of "
            f"{limit_tokens} tokens. You requested a total of "
            f"{num_prompt_tokens + max_new_tokens} tokens: {num_prompt_tokens} tokens from the "
            f"input and {max_new_tokens} tokens for the completion.",
            param="max_new_tokens",
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.max_new_tokens = max_new_tokens
        self.limit_tokens = limit_tokens


class DuplicateRequest(RequestError):
    code = "duplicate_request"

    def __init__(self, rid: str) -> None:
        super().__init__(f"Duplicate request ID detected: {rid}", param="rid")
        self.rid = rid


class NotFound(RequestError):
    code = "not_found"
    http_status = 404


class ModelNotFound(NotFound):
    code = "model_not_found"


class TooLarge(RequestError):
    code = "request_too_large"
    http_status = 413


class Refused(RequestError):
    """The request may be fine; the server's state forbids it now."""


class QueueFull(Refused):
    code = "queue_full"
    http_status = 503


class ShuttingDown(Refused):
    code = "shutting_down"
    http_status = 503


class DeadlinePassed(Refused):
    code = "deadline"
    http_status = 504


class EngineFault(Refused):
    code = "engine_fault"
    http_status = 500
