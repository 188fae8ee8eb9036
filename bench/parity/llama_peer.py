"""llama.cpp's library, through `llama-cpp-python`'s ctypes: its tokenizer and its logits.

`LLAMA_CPP_LIB_PATH` names a folder with another build of `libllama.so` than the package's own.
"""

import ctypes
from pathlib import Path
from types import TracebackType
from typing import Self

import llama_cpp
import numpy as np
from numpy.typing import NDArray


class LlamaVocab:
    """The vocabulary of a GGUF file as llama.cpp reads it. No weights are loaded."""

    def __init__(self, path: Path) -> None:
        _quiet()
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        assert self._model, f"llama.cpp cannot load {path}"
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The ids of `text`."""
        data = text.encode()
        room = len(data) + 8
        ids = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(
            self._vocab, data, len(data), ids, room, add_special, parse_special
        )
        assert count >= 0
        return list(ids[:count])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        llama_cpp.llama_model_free(self._model)


class LlamaModel:
    """A GGUF model in llama.cpp, on the CPU, for the logits of whole prompts."""

    def __init__(self, path: Path, *, max_tokens: int, threads: int = 2, chunk: int = 512) -> None:
        _quiet()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        assert self._model, f"llama.cpp cannot load {path}"
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = max_tokens
        context.n_batch = context.n_ubatch = chunk
        context.n_threads = context.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        assert self._context
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size: int = llama_cpp.llama_vocab_n_tokens(vocab)
        self._chunk = chunk

    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        """f32 [len(ids), vocabulary]: the logits after each of `ids`, from a fresh context."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        rows: list[NDArray[np.float32]] = []
        for start in range(0, len(ids), self._chunk):
            part = ids[start : start + self._chunk]
            batch = llama_cpp.llama_batch_init(len(part), 0, 1)
            batch.n_tokens = len(part)
            for index, token in enumerate(part):
                batch.token[index] = token
                batch.pos[index] = start + index
                batch.n_seq_id[index] = 1
                batch.seq_id[index][0] = 0
                batch.logits[index] = 1
            assert llama_cpp.llama_decode(self._context, batch) == 0
            found = llama_cpp.llama_get_logits(self._context)
            shape = (len(part), self._vocab_size)
            rows.append(np.ctypeslib.as_array(found, shape=shape).astype(np.float32, copy=True))
            llama_cpp.llama_batch_free(batch)
        return np.concatenate(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)


def _ignore(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None:
    """llama.cpp's log is of no interest here."""


# Kept for as long as the library may call it.
_DROP = llama_cpp.llama_log_callback(_ignore)


def _quiet() -> None:
    llama_cpp.llama_log_set(_DROP, ctypes.c_void_p(0))
