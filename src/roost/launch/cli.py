"""The command line. The only reader of argv and of the environment."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Final, NoReturn

import click

import roost
from roost.core.config import ENV_CONFIG_FILE, Layer, Resolved, env_layer, resolve
from roost.core.errors import ConfigError, RoostError
from roost.launch.options import Given, SettingsCommand, with_settings
from roost.launch.settings_file import file_layer

_CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_Command = Callable[..., None]


def main() -> NoReturn:
    """What `roost` runs."""
    # numpy's BLAS is never called; it would start a thread a core in every process that loads it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    app(args=sys.argv[1:], prog_name="roost")
    sys.exit(0)


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of their use, not of the alphabet."""
        del ctx
        return list(self.commands)


@click.group(cls=_Commands, context_settings=_CONTEXT)
@click.version_option(roost.__version__, prog_name="roost", message="%(prog)s %(version)s")
def app() -> None:
    """An LLM serving engine for the machines that people have."""


def _command(*parts: str) -> Callable[[_Command], _Command]:
    """A command with the settings of these parts; what roost raises on purpose is one line."""

    def decorate(command: _Command) -> _Command:
        @wraps(command)
        def guarded(*args: object, **kwargs: object) -> None:
            try:
                command(*args, **kwargs)
            except RoostError as error:
                print(f"roost: {error.message}", file=sys.stderr)
                sys.exit(1)

        made = with_settings(guarded, parts)
        app.command(command.__name__, cls=SettingsCommand)(made)
        return made

    return decorate


_model = click.argument("model_argument", metavar="[MODEL]", required=False)
_config = click.option("--config", metavar="FILE", help="A TOML file with settings.")
_temperature = click.option(
    "--temperature", type=float, default=0.7, help="0 is greedy.", show_default=True
)


@_command("model", "server", "engine", "log")
@_model
@_config
@click.option("--explain", is_flag=True, help="Print every setting, its value and why; then exit.")
def serve(given: Given, model_argument: str | None, config: str | None, *, explain: bool) -> None:
    """Serve a model over HTTP: the OpenAI API and SGLang's own.

    MODEL is `demo`, a .gguf file, a folder, or a hub id (default: demo).
    """
    resolved = _resolve(given, model_argument, config)
    if explain:
        from roost.launch.explain import explain as print_settings

        print_settings(resolved)
        return
    from roost.launch.serve import serve as run_server

    sys.exit(run_server(resolved))


@_command("model", "engine", "log")
@_model
@_config
@click.option("--url", help="Talk to this server instead of loading a model.")
@click.option("--system", help="A system message.")
@_temperature
@click.option("--max-tokens", type=int, help="Most tokens of an answer.")
@click.option("--seed", type=int, help="The same answers again.")
def chat(
    given: Given,
    model_argument: str | None,
    config: str | None,
    *,
    url: str | None,
    system: str | None,
    temperature: float,
    max_tokens: int | None,
    seed: int | None,
) -> None:
    """Talk to a model in the terminal.

    MODEL is `demo`, a .gguf file, a folder, or a hub id (default: demo).
    """
    from roost.launch.chat import chat as run_chat
    from roost.launch.talkers import ChatOptions

    resolved = _resolve(given, model_argument, config)
    options = ChatOptions(system, temperature, max_tokens, seed)
    sys.exit(run_chat(resolved.config, options, url, _api_key()))


@_command("model", "engine", "log")
@click.argument("prompt")
@_config
@click.option("--chat", "is_chat", is_flag=True, help="Put it to the model as a user's message.")
@_temperature
@click.option(
    "--max-tokens", type=int, default=256, help="Most tokens of the answer.", show_default=True
)
@click.option("--seed", type=int, help="The same answer again.")
def generate(
    given: Given,
    prompt: str,
    config: str | None,
    *,
    is_chat: bool,
    temperature: float,
    max_tokens: int,
    seed: int | None,
) -> None:
    """Answer one prompt, without a server.

    PROMPT is what to continue; - reads standard input.
    """
    from roost.launch.generate import GenerateOptions
    from roost.launch.generate import generate as run_generate

    resolved = _resolve(given, None, config)
    options = GenerateOptions(temperature, max_tokens, seed, is_chat)
    sys.exit(run_generate(resolved.config, prompt, options))


@_command("model", "server", "engine", "log")
@_model
@_config
def doctor(given: Given, model_argument: str | None, config: str | None) -> None:
    """Check that this machine and this model are fit to serve.

    MODEL is `demo`, a .gguf file, a folder, or a hub id (default: demo).
    """
    from roost.launch.doctor import doctor as run_doctor

    sys.exit(run_doctor(_resolve(given, model_argument, config).config))


def _resolve(given: Given, model: str | None, config_file: str | None) -> Resolved:
    """Flags before variables before the file before what the machine suggests."""
    flags = dict(given)
    if model is not None:
        if flags.get("model") not in (None, model):
            raise ConfigError(f"the model is named twice: {model} and --model {flags['model']}")
        flags["model"] = model
    layers = [Layer(flags, "{flag}"), env_layer(os.environ)]
    path = config_file or os.environ.get(ENV_CONFIG_FILE)
    if path:
        layers.append(file_layer(Path(path)))
    layers.append(_user_cache())
    return resolve(layers)


def _user_cache() -> Layer:
    base = os.environ.get("XDG_CACHE_HOME")
    folder = Path(base) if base else Path.home() / ".cache"
    why = "XDG_CACHE_HOME" if base else "the user's cache"
    return Layer({"cache_dir": str(folder / "roost")}, why)


def _api_key() -> str | None:
    return os.environ.get("ROOST_API_KEY") or os.environ.get("OPENAI_API_KEY")
