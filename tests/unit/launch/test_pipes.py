"""The supervisor's listener, and the lines that it and its children exchange."""

import os
import socket

import msgspec
import pytest

from roost.core.config import ServeConfig
from roost.core.errors import ConfigError
from roost.launch.listener import listen, url_of
from roost.launch.readiness import (
    Drain,
    Drained,
    EngineLost,
    Failed,
    Job,
    Leave,
    LogLevelSet,
    Progress,
    Ready,
    Serve,
    news_lines,
    order_lines,
    say,
)


def test_port_zero_picks_a_free_one() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert port > 0
        assert url_of(listener) == f"http://127.0.0.1:{port}"


def test_a_socket_that_listens_everywhere_is_reached_here() -> None:
    with listen("0.0.0.0", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6_is_written_in_brackets() -> None:
    try:
        listener = listen("::1", 0)
    except ConfigError:
        pytest.skip("IPv6 is off on this machine")
    with listener:
        assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"


def test_a_port_in_use_is_named() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is in use"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "256.1.1.1", "192.0.2.1"])
def test_a_host_that_is_not_ours_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match=host):
        listen(host, 0)


def test_lines_come_whole_and_in_order_however_the_pipe_cuts_them() -> None:
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    lines = news_lines(read_fd)
    assert lines.read() == []
    sent = [
        Progress(1, 2),
        Ready("facts\nof two lines"),
        LogLevelSet("debug"),
        Drained(),
        Failed("why"),
    ]
    data = b"".join(msgspec.json.encode(news) + b"\n" for news in sent)
    heard = []
    for at in range(len(data)):
        os.write(write_fd, data[at : at + 1])
        heard += lines.read()
    assert heard == sent
    assert [lines.is_ended] == [False]
    os.close(write_fd)
    assert lines.read() == []
    assert lines.is_ended
    os.close(read_fd)


def test_a_job_and_its_orders_arrive_as_they_were_sent() -> None:
    read_fd, write_fd = os.pipe()
    lines = order_lines(read_fd)
    job = Job("http", ServeConfig(), {"port": "default"}, "/x", 1, 2, 3, 4, 5)
    for order in (job, Serve(), Drain(1.5), Leave(), EngineLost("it died")):
        assert say(write_fd, order)
        assert lines.read() == [order]
    os.close(read_fd)
    assert not say(write_fd, Drain(0.0))
    os.close(write_fd)
