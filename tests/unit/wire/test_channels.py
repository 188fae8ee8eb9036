"""Both corridors behave alike: the same tests over memory and over sockets."""

import math
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from roost.core.calls import Abort, FlushCache, OpenSession, Pause, SetLogLevel
from roost.core.events import Accepted, Delta, Ended, Started, TokenLogprob, Usage
from roost.core.outcome import Outcome
from roost.core.params import Limits, SamplingParams, check_sampling
from roost.core.request import (
    NO_LOGPROBS,
    Envelope,
    GenerateRequest,
    Origin,
    RequestId,
    SessionTurn,
)
from roost.wire import SUPERVISOR, EngineSide, MemoryCorridor, WorkerSide, engine_address
from roost.wire.messages import (
    Audit,
    Audited,
    Cancel,
    Control,
    ControlDone,
    Goodbye,
    Heartbeat,
    Hello,
    Load,
    ModelFacts,
    Noted,
    Notice,
    Output,
    Outputs,
    ToEngine,
    ToWorker,
    Welcome,
)
from roost.wire.topology import identity_of, origin_of
from roost.wire.zmq_channel import ZmqEngineSide, ZmqWorkerSide

A = Origin(worker=0, epoch=1)
B = Origin(worker=1, epoch=1)
FACTS = ModelFacts("m", "llama", "llama", 100, 64, (2,), 1024, "bf16", "avx2", 2, "v", 72)


def request(rid: str, origin: Origin) -> GenerateRequest:
    limits = Limits(vocab_size=100, max_context_tokens=64, eos_ids=(2,))
    params = SamplingParams(stop=["\n\n", "é"], logit_bias={"7": -1.5}, seed=2**64 - 1)
    return GenerateRequest(
        envelope=Envelope(RequestId(rid), origin, 9, 1.5, math.inf, 0, "", "call"),
        prompt_ids=(1, 2, 3),
        sampling=check_sampling(params, limits, num_prompt_tokens=3, fallback_seed=0),
        logprobs=NO_LOGPROBS,
        turn=SessionTurn("s", RequestId("parent"), -2, drops_output=True),
    )


class House:
    """One engine's end, and a way to connect workers."""

    def __init__(self, engine: EngineSide, connect: Callable[[Origin], WorkerSide]) -> None:
        self.engine = engine
        self._connect = connect
        self._workers: list[WorkerSide] = []

    def worker(self, origin: Origin) -> WorkerSide:
        """A worker that the engine has heard of."""
        worker = self._connect(origin)
        self._workers.append(worker)
        worker.send(Hello(origin))
        assert self.hear() == [Hello(origin)]
        return worker

    def hear(self, num: int = 1) -> list[ToEngine]:
        heard: list[ToEngine] = []
        while len(heard) < num:
            self.engine.wait(5.0)
            got = self.engine.receive()
            assert got, "nothing came in time"
            heard += got
        return heard

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self.engine.close()


def answers(worker: WorkerSide, num: int = 1) -> list[ToWorker]:
    heard: list[ToWorker] = worker.receive()
    while len(heard) < num:
        assert select.select([worker.fileno()], [], [], 5.0)[0], "nothing came in time"
        heard += worker.receive()
    return heard


@pytest.fixture(params=["memory", "zmq"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    if request.param == "memory":
        corridor = MemoryCorridor()
        house = House(corridor.engine, corridor.connect)
    else:
        address = engine_address(tmp_path)
        house = House(ZmqEngineSide(address), lambda origin: ZmqWorkerSide(address, origin))
    yield house
    house.close()


def test_every_message_down_arrives_as_it_was_sent(house: House) -> None:
    worker = house.worker(A)
    sent: list[ToEngine] = [
        request("r", A),
        Cancel(A, 9, is_disconnect=True),
        Cancel(A, 10, is_disconnect=False, message="enough"),
        Control(A, "c1", Abort(None)),
        Control(A, "c2", FlushCache(1.5)),
        Control(A, "c3", Pause("in_place")),
        Control(A, "c4", OpenSession("s", capacity_chars=7)),
        Noted(A, "1.1", 3),
        Audit(A, 1, (9, 10)),
        Goodbye(A),
    ]
    for message in sent:
        worker.send(message)
    assert house.hear(len(sent)) == sent


def test_every_message_up_arrives_as_it_was_sent(house: House) -> None:
    worker = house.worker(A)
    logprob = TokenLogprob(5, -0.1, top=((5, -0.1), (6, -2.5)), picked=((7, -9.0),))
    rid = RequestId("r")
    sent: list[ToWorker] = [
        Outputs(
            (
                Output(rid, 9, Accepted()),
                Output(rid, 9, Started(0, (1, 2))),
                Output(rid, 9, Delta(3, (5,), (logprob,), (TokenLogprob(1, None),))),
                Output(rid, 9, Ended(Outcome.STOP, Usage(1, 2, 3, 4, 0.5), "é", text_bytes=4)),
            ),
        ),
        Welcome(2, FACTS, "debug"),
        Heartbeat(1.25, Load(num_running=3)),
        ControlDone("c1", is_ok=False, message="no"),
        ControlDone("c2", is_ok=True, count=2, result="[]"),
        Notice("1.1", Abort(rid, "enough")),
        Notice("1.2", SetLogLevel("warning")),
        Audited(1, (10,)),
    ]
    for message in sent:
        assert house.engine.send(A, message)
    assert answers(worker, len(sent)) == sent


def test_each_worker_hears_only_what_is_addressed_to_it(house: House) -> None:
    a, b = house.worker(A), house.worker(B)
    for at_s in range(3):
        assert house.engine.send(A, Heartbeat(at_s, Load()))
        assert house.engine.send(B, Heartbeat(10 + at_s, Load()))
    assert answers(a, 3) == [Heartbeat(at_s, Load()) for at_s in (0, 1, 2)]
    assert answers(b, 3) == [Heartbeat(at_s, Load()) for at_s in (10, 11, 12)]


def test_sending_to_a_life_that_is_not_there_says_so(house: House) -> None:
    house.worker(A)
    assert not house.engine.send(B, Heartbeat(0, Load()))
    assert not house.engine.send(Origin(0, 2), Heartbeat(0, Load()))
    assert house.engine.send(A, Heartbeat(0, Load()))


def test_the_next_life_of_a_worker_is_another_address(house: House) -> None:
    first = house.worker(A)
    second = house.worker(Origin(0, 2))
    assert house.engine.send(A, Heartbeat(1, Load()))
    assert house.engine.send(Origin(0, 2), Heartbeat(2, Load()))
    assert answers(first) == [Heartbeat(1, Load())]
    assert answers(second) == [Heartbeat(2, Load())]


def test_receive_without_a_message_gives_nothing_at_once(house: House) -> None:
    worker = house.worker(A)
    assert worker.receive() == []
    assert house.engine.receive() == []
    house.engine.wait(0.0)


def test_wait_ends_when_a_message_arrives(house: House) -> None:
    worker = house.worker(A)
    sender = threading.Thread(target=worker.send, args=(Hello(A),))
    sender.start()
    assert house.hear() == [Hello(A)]
    sender.join()


def test_the_descriptor_rings_again_after_each_round(house: House) -> None:
    worker = house.worker(A)
    for at_s in range(200):
        worker.send(Cancel(A, 1, is_disconnect=False))
        assert house.engine.send(A, Heartbeat(at_s, Load()))
        assert answers(worker) == [Heartbeat(at_s, Load())]
    assert len(house.hear(200)) == 200


def test_order_is_kept_over_many_messages(house: House) -> None:
    worker = house.worker(A)
    for number in range(2000):
        worker.send(Cancel(A, number, is_disconnect=False))
    heard = house.hear(2000)
    assert [m.serial for m in heard if isinstance(m, Cancel)] == list(range(2000))


def test_a_closed_memory_worker_is_gone_at_once() -> None:
    corridor = MemoryCorridor()
    worker = corridor.connect(A)
    worker.close()
    worker.close()
    assert not corridor.engine.send(A, Heartbeat(0, Load()))
    corridor.engine.close()
    worker.send(Goodbye(A))  # to an engine that is gone: lost, and no error


def test_a_closed_socket_is_gone_soon(tmp_path: Path) -> None:
    address = engine_address(tmp_path)
    house = House(ZmqEngineSide(address), lambda origin: ZmqWorkerSide(address, origin))
    other = house.worker(B)
    house.worker(A).close()
    house._workers.pop()
    for _ in range(5000):  # until ZeroMQ's own thread has seen the closed socket
        house.engine.wait(0.001)
        if not house.engine.send(A, Heartbeat(0, Load())):
            break
    else:
        pytest.fail("a closed peer still takes messages")
    assert house.engine.send(B, Heartbeat(1, Load()))
    assert answers(other) == [Heartbeat(1, Load())]
    house.close()


@pytest.mark.parametrize(
    "frames",
    [
        [b"not msgpack \xc1"],
        [b""],
        [msgspec.msgpack.encode(["nonsense", 1])],
        [msgspec.msgpack.encode(["hello", [0, "one"]])],
        [msgspec.msgpack.encode(["control", [0, 1], "c1", ["explode"]])],
        [msgspec.msgpack.encode(["control", [0, 1], "c1", ["pause", "sideways"]])],
        [b"\x93\xa5hello\x92\x00\x01" + b"\x91" * 100_000 + b"\x90"],
        [msgspec.msgpack.encode(Hello(A)), b"more"],
    ],
    ids=[
        "noise",
        "empty",
        "unknown tag",
        "wrong type",
        "unknown call",
        "unknown mode",
        "too deep",
        "two parts",
    ],
)
def test_a_malformed_message_is_a_counted_drop(tmp_path: Path, frames: list[bytes]) -> None:
    assert_is_dropped(tmp_path, frames)


@pytest.mark.parametrize(
    "message",
    [
        Hello(B),
        request("r", B),
        Cancel(B, 9, is_disconnect=True),
        Control(B, "c1", Abort(None)),
        Noted(B, "1.1", 0),
        Audit(B, 1, (9,)),
        Goodbye(B),
        # Not even for its own other lives.
        Goodbye(Origin(A.worker, 2)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_nobody_may_write_anothers_address_on_a_message(tmp_path: Path, message: ToEngine) -> None:
    assert_is_dropped(tmp_path, [msgspec.msgpack.encode(message)])


def test_the_supervisor_alone_says_goodbye_for_others(tmp_path: Path) -> None:
    address = engine_address(tmp_path)
    house = House(ZmqEngineSide(address), lambda origin: ZmqWorkerSide(address, origin))
    supervisor = house.worker(SUPERVISOR)
    supervisor.send(Cancel(A, 9, is_disconnect=True))
    supervisor.send(Goodbye(A))
    heard: list[ToEngine] = []
    while not heard:  # the first ring may be that of the message that is dropped
        house.engine.wait(5.0)
        heard = house.engine.receive()
    assert heard == [Goodbye(A)]
    house.close()


def assert_is_dropped(tmp_path: Path, frames: list[bytes]) -> None:
    """Worker A sends these frames, and then a Hello that is heard as ever."""
    engine = ZmqEngineSide(engine_address(tmp_path))
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.setsockopt(zmq.IDENTITY, identity_of(A))
        raw.connect(engine_address(tmp_path))
        raw.send_multipart(frames)
        raw.send(msgspec.msgpack.encode(Hello(A)))
        heard: list[ToEngine] = []
        while not heard:
            engine.wait(5.0)
            heard = engine.receive()
        assert heard == [Hello(A)]
        assert engine.num_malformed == 1
    engine.close()


def test_a_stranger_is_a_counted_drop(tmp_path: Path) -> None:
    engine = ZmqEngineSide(engine_address(tmp_path))
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.connect(engine_address(tmp_path))
        raw.send(msgspec.msgpack.encode(Hello(A)))
        engine.wait(5.0)
        assert engine.receive() == []
        assert engine.num_malformed == 1
    engine.close()


def test_a_malformed_message_to_a_worker_is_a_counted_drop(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'raw.sock'}"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as raw:
        raw.bind(address)
        worker = ZmqWorkerSide(address, A)
        worker.send(Hello(A))
        identity, _ = raw.recv_multipart()
        raw.send_multipart([identity, b"\xc1"])
        raw.send_multipart([identity, msgspec.msgpack.encode(Heartbeat(3, Load()))])
        assert answers(worker) == [Heartbeat(3, Load())]
        assert worker.num_malformed == 1
        worker.close()


def test_an_address_that_cannot_be_bound_raises_oserror(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot bind"):
        ZmqEngineSide(engine_address(tmp_path / "missing"))


@pytest.mark.parametrize("origin", [A, B, SUPERVISOR, Origin(12, 345)])
def test_identity_and_origin_are_each_others_inverse(origin: Origin) -> None:
    assert origin_of(identity_of(origin)) == origin


@pytest.mark.parametrize("identity", [b"", b"w", b"w1", b"w1.", b"w-2.1", b"w1.2x", b"\x00abcd"])
def test_other_identities_are_strangers(identity: bytes) -> None:
    assert origin_of(identity) is None
