"""The command line. The only reader of argv and of the environment."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import roost
from roost.core.config import ENV_CONFIG_FILE, Layer, Resolved, env_layer, resolve
from roost.core.errors import ConfigError, RoostError
from roost.launch.options import Given, with_settings
from roost.launch.settings_file import file_layer

app = typer.Typer(
    name="roost",
    help="An LLM serving engine for the machines that people have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="`demo`, a .gguf file, a folder, or a hub id (default: demo).",
        show_default=False,
    ),
]
ConfigFile = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="A TOML file with settings.", show_default=False),
]


def main() -> NoReturn:
    """What `roost` runs."""
    app(args=sys.argv[1:], prog_name="roost")
    sys.exit(0)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"roost {roost.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    del version


def _command(*parts: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with the settings of these parts; what roost raises on purpose is one line."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def guarded(*args: object, **kwargs: object) -> None:
            try:
                command(*args, **kwargs)
            except RoostError as error:
                print(f"roost: {error.message}", file=sys.stderr)
                raise typer.Exit(1) from None

        made = with_settings(guarded, parts)
        app.command(name=command.__name__)(made)
        return made

    return decorate


@_command("model", "server", "engine", "log")
def serve(
    given: Given,
    model_argument: Model = None,
    config: ConfigFile = None,
    *,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print every setting, its value and why; then exit.")
    ] = False,
) -> None:
    """Serve a model over HTTP: the OpenAI API and SGLang's own."""
    resolved = _resolve(given, model_argument, config)
    if explain:
        from roost.launch.explain import explain as print_settings

        print_settings(resolved)
        return
    from roost.launch.serve import serve as run_server

    raise typer.Exit(run_server(resolved))


@_command("model", "engine", "log")
def chat(
    given: Given,
    model_argument: Model = None,
    config: ConfigFile = None,
    *,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", help="Talk to this server instead of loading a model.", show_default=False
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", help="A system message.", show_default=False)
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.7,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", help="Most tokens of an answer.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="The same answers again.", show_default=False)
    ] = None,
) -> None:
    """Talk to a model in the terminal."""
    from roost.launch.chat import chat as run_chat
    from roost.launch.talkers import ChatOptions

    resolved = _resolve(given, model_argument, config)
    options = ChatOptions(system, temperature, max_tokens, seed)
    raise typer.Exit(run_chat(resolved.config, options, url, _api_key()))


@_command("model", "engine", "log")
def generate(
    given: Given,
    prompt: Annotated[str, typer.Argument(help="What to continue; - reads standard input.")],
    config: ConfigFile = None,
    *,
    is_chat: Annotated[
        bool, typer.Option("--chat", help="Put it to the model as a user's message.")
    ] = False,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.7,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", help="Most tokens of the answer.")
    ] = 256,
    seed: Annotated[
        int | None, typer.Option("--seed", help="The same answer again.", show_default=False)
    ] = None,
) -> None:
    """Answer one prompt, without a server."""
    from roost.launch.generate import GenerateOptions
    from roost.launch.generate import generate as run_generate

    resolved = _resolve(given, None, config)
    options = GenerateOptions(temperature, max_tokens, seed, is_chat)
    raise typer.Exit(run_generate(resolved.config, prompt, options))


@_command("model", "server", "engine", "log")
def doctor(given: Given, model_argument: Model = None, config: ConfigFile = None) -> None:
    """Check that this machine and this model are fit to serve."""
    from roost.launch.doctor import doctor as run_doctor

    raise typer.Exit(run_doctor(_resolve(given, model_argument, config).config))


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
