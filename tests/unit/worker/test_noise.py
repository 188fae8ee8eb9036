"""Whatever arrives on the engine's socket, the loop goes on."""

from pathlib import Path

import msgspec
import zmq
from tests.sim.fake_runner import VOCAB_SIZE, FakeRunner, letters
from tests.unit.worker.rig import FACTS, HERE, THERE

from roost.cache import KvCache, PagePool
from roost.core.calls import Resume
from roost.core.clock import SystemClock
from roost.sched import SchedLimits, Scheduler
from roost.text import StopMatcher
from roost.wire import engine_address, identity_of
from roost.wire.messages import Audit, Cancel, Control, ControlDone, Hello, Noted, ToWorker
from roost.wire.zmq_channel import ZmqEngineSide
from roost.worker import EngineLoop

NOISE = [
    b"",
    b"\xc1",
    msgspec.msgpack.encode(["from the future", [0, 1]]),
    msgspec.msgpack.encode(["control", [0, 1], "c0", ["update_weights", "path"]]),
    msgspec.msgpack.encode(["control", [0, 1], "c0", ["pause", "sideways"]]),
    msgspec.msgpack.encode(["control", [0, 1], "c0", ["set_log_level", "loud"]]),
    msgspec.msgpack.encode(["cancel", [0, 1], "seven", True]),
    msgspec.msgpack.encode(["generate", None, [], None, None]),
    msgspec.msgpack.encode(Hello(THERE)),
]
# Well formed, and about nothing that there is.
STRAY: list[Cancel | Noted | Audit] = [
    Cancel(HERE, 2**63, is_disconnect=True),
    Cancel(HERE, -1, is_disconnect=False),
    Noted(HERE, "", -5),
    Noted(HERE, "1.1", 5),
    Audit(HERE, -1, ()),
    Audit(HERE, 2**62, tuple(range(1000))),
]


def test_noise_and_stray_words_stop_nothing(tmp_path: Path) -> None:
    channel = ZmqEngineSide(engine_address(tmp_path))
    limits = SchedLimits(VOCAB_SIZE, 512, 4, 10, max_step_tokens=32)
    scheduler = Scheduler(KvCache(PagePool(64)), limits, letters, StopMatcher)
    loop = EngineLoop(channel, scheduler, FakeRunner(64), FACTS, clock=SystemClock())
    decode = msgspec.msgpack.Decoder(ToWorker).decode
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.setsockopt(zmq.IDENTITY, identity_of(HERE))
        peer.connect(engine_address(tmp_path))
        peer.send(msgspec.msgpack.encode(Hello(HERE)))
        for data in NOISE:
            peer.send(data)
        for message in STRAY:
            peer.send(msgspec.msgpack.encode(message))
        peer.send(msgspec.msgpack.encode(Control(HERE, "c1", Resume())))
        done: list[ToWorker] = []
        while not done:
            channel.wait(0.01)
            assert not loop.step()
            heard = [decode(peer.recv()) for _ in iter(lambda: peer.poll(0), 0)]
            done = [message for message in heard if isinstance(message, ControlDone)]
        assert done == [ControlDone("c1", is_ok=True)]
        assert channel.num_malformed == len(NOISE)
        scheduler.check()
    loop.close()
