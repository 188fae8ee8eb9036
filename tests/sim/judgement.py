"""What must be true of a house when it has settled, whatever was done to it."""

import logging
import math
from collections import Counter

from tests.sim import script
from tests.sim.asked import Asked
from tests.sim.expected import prompts_of
from tests.sim.fake_runner import alone
from tests.sim.house import MAX_CONTEXT_TOKENS, House
from tests.sim.sharing import Shared, wrong_scores
from tests.sim.worker import Called, Worker

from roost.core import calls
from roost.core.events import Delta, Ended, Started
from roost.core.outcome import Outcome
from roost.core.plan import PAGE_TOKENS

# An engine that is silent for so long is given up by its workers.
_GIVEN_UP_S = 30.0
# What a level means: INFO is the client's business, WARNING the operator's, ERROR the server's.
_LEVELS = {
    Outcome.STOP: logging.INFO,
    Outcome.LENGTH: logging.INFO,
    Outcome.CLIENT_DISCONNECTED: logging.INFO,
    Outcome.CLIENT_CANCELLED: logging.INFO,
    Outcome.INVALID_REQUEST: logging.INFO,
    Outcome.QUEUE_FULL: logging.WARNING,
    Outcome.DEADLINE: logging.WARNING,
    Outcome.SHUTTING_DOWN: logging.WARNING,
    Outcome.ENGINE_FAULT: logging.ERROR,
}
# On a network without troubles, the news of an end takes so long at most.
_NEWS_S = 2.5
_FINISHED = (Outcome.STOP, Outcome.LENGTH)
_NO_SESSION = "does not exist"
_CLOSED = "close was requested"
_NO_TURN = "Invalid request session id"


def judge(house: House) -> list[str]:
    """What is wrong, in words; nothing when all is well."""
    wrong = _nothing_is_left(house)
    shared = Shared(house)
    for worker in (*house.workers, *house.dead):
        for asked in worker.asked:
            found = _of_request(house, worker, asked) + _of_cache(house, shared, asked)
            wrong += [f"{asked.rid}: {what}" for what in found]
        wrong += _of_lines(worker)
        if not house.network.losses.num and "unknown" in worker.witness.late_causes:
            wrong.append(f"{worker.origin} heard of what was never there")
    for called in house.calls:
        wrong += [f"{called.call_id} {called.call}: {what}" for what in _of_call(house, called)]
    wrong += [
        f"an ERROR line: {text}" for level, text in house.lines.lines if level >= logging.ERROR
    ]
    return wrong


def _nothing_is_left(house: House) -> list[str]:
    left: list[str] = []
    load = house.scheduler.load()
    if house.kv.num_used:
        left.append(f"{house.kv.num_used} pages are in use")
    if (load.num_running, load.num_waiting) != (0, 0):
        left.append(f"the engine holds requests: {load}")
    for worker in house.workers:
        if house.scheduler.held_serials(worker.origin):
            left.append(f"the engine holds serials of {worker.origin}")
        if worker.core.ledger.live():
            left.append(f"{worker.origin} holds {worker.core.ledger.live()}")
    # What is left is the cache's, and of that everything can be had.
    house.scheduler.check()
    house.kv.flush()
    if house.pool.num_free != house.pool.num_pages:
        left.append(f"{house.pool.num_pages - house.pool.num_free} pages are not free")
    return left


def _of_cache(house: House, shared: Shared, asked: Asked) -> list[str]:
    started = [event for _, event in asked.seen if isinstance(event, Started)]
    if not started:
        return []
    prompt = asked.request.prompt_ids if asked.request.turn is None else started[0].prompt_ids
    wrong = shared.wrong_with(asked, prompt)
    if asked.ending is not None and asked.ending.outcome in _FINISHED:
        wrong += wrong_scores(asked, prompt)
    return wrong


def _of_request(house: House, worker: Worker, asked: Asked) -> list[str]:
    ending = asked.ending
    if ending is None:
        return [] if worker.is_dead else [f"did not end: {asked.state}, {asked.action}"]
    wrong: list[str] = []
    if sum(isinstance(event, Ended) for _, event in asked.seen) != 1:
        wrong.append("ended more than once")
    seen = [event for _, event in asked.seen]
    if not asked.is_refused and asked.heard != seen[len(seen) - len(asked.heard) :]:
        wrong.append("its client heard something else than happened")
    if not asked.is_refused and (not asked.heard or asked.heard[-1] != ending):
        wrong.append("its client did not hear the end")
    reason = _why_not(house, asked, ending)
    if reason:
        wrong.append(f"ended {ending.outcome} ({ending.message!r}), but {reason}")
    is_calm = not (house.network.losses.num or house.silences or house.worker_stalls)
    if is_calm and asked.ended_s > asked.envelope.deadline_s + _NEWS_S:
        wrong.append(f"ended {asked.ended_s - asked.envelope.deadline_s:.1f} s after its deadline")
    return wrong + _of_tokens(house, asked, ending)


def _of_tokens(house: House, asked: Asked, ending: Ended) -> list[str]:
    deltas = [event for _, event in asked.seen if isinstance(event, Delta)]
    tokens = [token_id for delta in deltas for token_id in delta.token_ids]
    started = [event for _, event in asked.seen if isinstance(event, Started)]
    wrong: list[str] = []
    prompts = prompts_of(house, asked) if started else {asked.request.prompt_ids}
    if started and asked.request.turn is not None:
        prompt_ids = started[0].prompt_ids
        if prompt_ids not in prompts:
            return [f"its whole prompt is {prompt_ids}, none of {sorted(prompts)}"]
        prompts = {prompt_ids}
    elif started and started[0].prompt_ids:
        wrong.append("told of a prompt that it knew")
    answers = [alone(prompt, asked.request.sampling) for prompt in sorted(prompts)]
    if ending.outcome in _FINISHED:
        if tokens not in answers:
            wrong.append(f"answered {tokens}, alone it says {answers}")
        is_stop = bool(tokens) and tokens[-1] in asked.request.sampling.stop_ids
        if is_stop != (ending.outcome is Outcome.STOP):
            wrong.append(f"ended {ending.outcome} with {tokens}")
    elif not any(tokens == answer[: len(tokens)] for answer in answers):
        wrong.append(f"began with {tokens}, alone it says {answers}")
    key = (asked.envelope.origin, asked.envelope.serial)
    is_whole = key not in house.network.losses.serials
    if is_whole and ending.usage.num_completion_tokens != len(tokens):
        wrong.append(f"{len(tokens)} tokens, counted as {ending.usage.num_completion_tokens}")
    return wrong


# ---- may it have ended so?


def _why_not(house: House, asked: Asked, ending: Ended) -> str:
    """Why this ending is not one that anything which was done allows; empty: it is."""
    envelope = asked.envelope
    match ending.outcome:
        case Outcome.STOP | Outcome.LENGTH:
            return ""
        case Outcome.CLIENT_DISCONNECTED:
            return "" if asked.has_left else "its client has not left"
        case Outcome.CLIENT_CANCELLED:
            return "" if _was_aborted(house, asked) else "nobody aborted it"
        case Outcome.DEADLINE:
            due_s = min(envelope.deadline_s, envelope.arrival_s + house.layout.queue_timeout_s)
            return "" if due_s <= asked.ended_s else f"it had time until {due_s}"
        case Outcome.SHUTTING_DOWN:
            return "" if asked.is_shut else "nothing was shut down"
        case Outcome.QUEUE_FULL:
            return _why_not_full(house, asked)
        case Outcome.INVALID_REQUEST:
            return _why_not_invalid(house, asked, ending)
        case Outcome.ENGINE_FAULT:
            return "" if _was_disturbed(house, asked) else "no fault was injected"
        case _:
            return "there is no such ending here"


def _was_aborted(house: House, asked: Asked) -> bool:
    names = (None, asked.rid, asked.envelope.group or asked.rid)
    if any(one.name in names and one.at_s <= asked.ended_s for one in house.aborts):
        return True
    turn = asked.request.turn
    return turn is not None and any(
        other.request.turn is not None
        and other.request.turn.replaces
        and other.request.turn.session_id == turn.session_id
        for other in house.asked
    )


def _was_disturbed(house: House, asked: Asked) -> bool:
    losses = house.network.losses
    if (asked.envelope.origin, asked.envelope.serial) in losses.serials:
        return True
    if asked.rid in house.runner.broken or asked.rid in house.faulted:
        return True
    began_s, ended_s = asked.envelope.arrival_s, asked.ended_s
    return any(
        until_s - from_s >= _GIVEN_UP_S and from_s <= ended_s and until_s >= began_s
        for from_s, until_s in house.silences
    )


def _why_not_full(house: House, asked: Asked) -> str:
    if isinstance(asked.action, script.Probe):
        return "it is a health check"
    began_s, ended_s = asked.envelope.arrival_s, asked.ended_s
    # What may have been in the house at the time, here or in the engine for a little longer.
    num = sum(
        other.envelope.arrival_s <= ended_s and house.gone_s(other) >= began_s
        for other in house.asked
        if isinstance(other.action, script.Ask)
    )
    return "" if num > house.layout.max_queued else f"there were {num} requests at most"


def _why_not_invalid(house: House, asked: Asked, ending: Ended) -> str:
    if asked.is_bad:
        return ""
    if ending.code == "duplicate_request":
        return "" if _has_twin(house, asked) else "its rid was free"
    if ending.code == "context_length_exceeded":
        request = asked.request
        num_tokens = len(request.prompt_ids) + request.sampling.max_new_tokens
        is_long = num_tokens > min(MAX_CONTEXT_TOKENS, PAGE_TOKENS * house.layout.num_pages)
        return "" if request.turn is not None or is_long else "it fits"
    turn = asked.request.turn
    if turn is None:
        return "there is nothing wrong with it"
    if _NO_SESSION in ending.message:
        return _why_no_session(house, asked, turn.session_id)
    if _CLOSED in ending.message:
        return "" if _closes(house, turn.session_id) else "nobody closed its session"
    if _NO_TURN in ending.message:
        return _why_no_turn(house, asked)
    # An offset out of range, a capacity, a busy parent.
    return ""


def _has_twin(house: House, asked: Asked) -> bool:
    """Whether another of that name was there at the time: alive, or a turn of the session."""
    turn = asked.request.turn
    mine = {asked.rid, asked.envelope.group or asked.rid}
    call = asked.action.name if isinstance(asked.action, script.Ask) else asked.rid
    for other in house.asked:
        if other is asked or other.envelope.arrival_s > asked.ended_s:
            continue
        theirs = {other.rid, other.envelope.group or other.rid}
        is_alike = bool(mine & theirs) or (
            # A call is refused as a whole, with those of its answers that were not at fault.
            isinstance(other.action, script.Ask) and other.action.name == call
        )
        if not is_alike:
            is_alike = any(
                mate.action is asked.action and mate.rid == other.rid for mate in house.asked
            )
        if not is_alike or other.action is asked.action:
            continue
        if house.gone_s(other) >= asked.envelope.arrival_s:
            return True
        other_turn = other.request.turn
        if turn is not None and other_turn is not None and other_turn.session_id == turn.session_id:
            return True
    return False


def _closes(house: House, session: str) -> list[Called]:
    return [
        called
        for called in house.calls
        if isinstance(called.call, calls.CloseSession) and called.call.session_id == session
    ]


def _why_no_session(house: House, asked: Asked, session: str) -> str:
    """Refused although it was open the whole time?"""
    if _closes(house, session):
        return ""
    for called in house.calls:
        call = called.call
        if not isinstance(call, calls.OpenSession) or call.session_id != session:
            continue
        timeout_s = house.layout.session_timeout_s if call.timeout_s is None else call.timeout_s
        was_opened = called.done is not None and called.done.is_ok
        was_there = was_opened and called.done_s <= asked.envelope.arrival_s
        # Opened after it was asked for, it cannot have expired so soon.
        if was_there and asked.ended_s < called.at_s + timeout_s:
            return "its session was open"
    return ""


def _why_no_turn(house: House, asked: Asked) -> str:
    turn = asked.request.turn
    assert turn is not None
    if turn.parent is None:
        return "it goes on from nothing"
    if _closes(house, turn.session_id) or house.layout.session_timeout_s != math.inf:
        return ""
    if any(
        other.request.turn and other.request.turn.replaces and not other.is_refused
        for other in house.asked
    ):
        return ""
    for other in house.asked:
        if other.rid != turn.parent or other.request.turn is None:
            continue
        if other.request.turn.session_id != turn.session_id or other.ending is None:
            continue
        if other.ending.outcome in _FINISHED and other.ended_s <= asked.envelope.arrival_s:
            return "its parent had ended well"
    return ""


# ---- lines and calls


def _of_lines(worker: Worker) -> list[str]:
    """One line for each ending, at its level; none that is not of one."""
    expected: Counter[tuple[str, str, int]] = Counter()
    for asked in worker.asked:
        if asked.ending is not None:
            outcome = asked.ending.outcome
            level = _LEVELS[outcome]
            if isinstance(asked.action, script.Probe):
                level = logging.DEBUG
            expected[asked.rid, str(outcome), level] += 1
    said = Counter(worker.keeper.lines)
    wrong = [f"{worker.origin} did not log {line}" for line in (expected - said).elements()]
    return wrong + [f"{worker.origin} logged {line}" for line in (said - expected).elements()]


def _of_call(house: House, called: Called) -> list[str]:
    wrong: list[str] = []
    if called.num_done > 1:
        wrong.append("was answered twice")
    worker_is_dead = any(worker.origin == called.origin for worker in house.dead)
    if called.num_done == 0 and not called.is_timed_out and not worker_is_dead:
        wrong.append("has no answer yet")
    if called.is_timed_out and not worker_is_dead and not _may_time_out(house, called):
        wrong.append(f"timed out at {called.at_s}, though nothing of it was lost")
    if called.done is not None:
        wrong += _of_answer(house, called)
    return wrong


def _may_time_out(house: House, called: Called) -> bool:
    losses = house.network.losses
    if called.call_id in losses.calls:
        return True
    if isinstance(called.call, calls.Abort | calls.SetLogLevel | calls.Pause) and losses.notices:
        return True
    call = called.call
    waits_s = call.timeout_s if isinstance(call, calls.FlushCache) else None
    end_s = called.at_s + 10.0 + (waits_s or 0.0)
    return any(
        from_s <= end_s and until_s >= called.at_s and until_s - from_s >= 1.0
        for from_s, until_s in house.silences
    ) or any(from_s <= end_s and until_s >= called.at_s for from_s, until_s in house.worker_stalls)


def _of_answer(house: House, called: Called) -> list[str]:
    done = called.done
    assert done is not None
    match called.call:
        case calls.Abort(name=name):
            if not done.is_ok:
                return [f"refused: {done.message}"]
            num = len(house.by_call.get(name, [])) if name is not None else len(house.asked)
            # Where news of an end got lost, the worker counts again what the engine has ended.
            if done.count > num and not house.network.losses.num:
                return [f"touched {done.count}, of {num} ever there"]
        case calls.Pause() | calls.Resume() | calls.SetLogLevel() | calls.ListSessions():
            if not done.is_ok:
                return [f"refused: {done.message}"]
        case _:
            pass
    return []
