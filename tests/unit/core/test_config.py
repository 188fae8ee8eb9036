import msgspec
import pytest

from roost.core.config import (
    Layer,
    ServeConfig,
    all_settings,
    env_layer,
    resolve,
    shown,
    value_of,
)
from roost.core.errors import ConfigError

FLAG = "{flag}"
FILE = "roost.toml: {name}"


def test_the_earlier_layer_wins_and_says_so() -> None:
    resolved = resolve(
        [
            Layer({"port": "1000"}, FLAG),
            env_layer({"ROOST_PORT": "2000", "ROOST_QUEUE_TIMEOUT": "1.5", "HOME": "/"}),
            Layer({"port": 3000, "queue_timeout": 9, "host": "::1"}, FILE),
        ]
    )
    assert resolved.config.server.port == 1000
    assert resolved.config.server.queue_timeout_s == 1.5
    assert resolved.config.server.host == "::1"
    assert resolved.reasons["port"] == "--port"
    assert resolved.reasons["queue_timeout"] == "ROOST_QUEUE_TIMEOUT"
    assert resolved.reasons["host"] == "roost.toml: host"
    assert resolved.reasons["threads"] == "default"


def test_nothing_given_is_the_defaults() -> None:
    assert resolve([env_layer({"ROOST_PORT": "", "ROOST_CONFIG": "x.toml"})]).config == (
        ServeConfig()
    )


def test_every_setting_can_be_given_as_text() -> None:
    texts = {"text": "abc", "texts": "a, b", "integer": "64", "number": "2.5"}
    given = {s.name: s.choices[-1] if s.choices else texts[s.kind] for s in all_settings()}
    given["max_request_bytes"] = given["max_step_tokens"] = "1024"
    config = resolve([Layer(given, FLAG)]).config
    for setting in all_settings():
        value = value_of(config, setting)
        assert value is not None
        if setting.kind == "texts":
            assert value == ("a", "b")
        elif setting.kind == "integer":
            assert value == int(given[setting.name])
        elif setting.kind == "number":
            assert value == 2.5


def test_names_are_unique_and_all_are_explained() -> None:
    names = [s.name for s in all_settings()]
    assert len(set(names)) == len(names)
    assert all(s.help.endswith(".") for s in all_settings())


@pytest.mark.parametrize(
    ("source", "values", "message"),
    [
        (FLAG, {"port": "abc"}, "--port must be an integer, got 'abc'"),
        (FLAG, {"port": "70000"}, "--port must be an integer <= 65535, got '70000'"),
        (FILE, {"port": True}, "roost.toml: port must be an integer, got 'True'"),
        (FILE, {"threads": 1.5}, "roost.toml: threads must be an integer, got '1.5'"),
        (FLAG, {"threads": "0"}, "--threads must be an integer >= 1, got '0'"),
        (FLAG, {"drain_timeout": "nan"}, "--drain-timeout must be a finite number, got 'nan'"),
        (FLAG, {"drain_timeout": "inf"}, "--drain-timeout must be a finite number, got 'inf'"),
        (
            "{variable}",
            {"isa": "avx3"},
            "ROOST_ISA must be one of portable, avx2, avx512, got 'avx3'",
        ),
        (FILE, {"model": 3}, "roost.toml: model must be text, got '3'"),
        (FLAG, {"model": ""}, "--model must be text of length >= 1, got ''"),
        (FLAG, {"api_key": "a,,b"}, "--api-key: api_key holds an empty entry"),
        (
            FILE,
            {"prot": 1},
            "roost.toml: prot is not a setting of roost; did you mean roost.toml: port?",
        ),
        (FLAG, {"zzzzzz": 1}, "--zzzzzz is not a setting of roost"),
    ],
)
def test_a_wrong_setting_names_itself_its_value_and_its_source(
    source: str, values: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve([Layer(values, source)])
    assert caught.value.message == message


def test_an_unknown_variable_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"^ROOST_PROT is not .*; did you mean ROOST_PORT\?$"):
        resolve([env_layer({"ROOST_PROT": "1"})])


def test_a_wrong_value_in_a_lower_layer_does_not_matter_when_it_is_overridden() -> None:
    assert resolve([Layer({"port": "1"}, FLAG), Layer({"port": "x"}, FILE)]).config.server.port == 1


def test_secrets_are_never_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve([Layer({"api_key": [1234567]}, FILE)])
    assert "1234567" not in caught.value.message
    key = next(s for s in all_settings() if s.name == "api_key")
    assert shown(key, ("sesame",)) == "(set)"
    assert shown(key, ()) == "–"


def test_it_survives_the_trip_to_another_process() -> None:
    config = resolve([Layer({"api_key": "a,b", "threads": "2", "drain_timeout": "3"}, FLAG)]).config
    assert msgspec.json.decode(msgspec.json.encode(config), type=ServeConfig) == config
