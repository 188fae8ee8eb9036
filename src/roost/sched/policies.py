"""In which order those that wait are considered."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Many
from itertools import chain, islice
from operator import attrgetter
from typing import Final, Literal, Protocol

from roost.cache import KvCache
from roost.sched.sequence import Sequence

PolicyName = Literal["lpm", "fcfs", "priority", "fair"]

# Who has waited for so long comes to its turn whatever the policy. A dozen times the length of a
# long step, so that a policy has something to choose from, and a tenth of the minute after which
# gateways give up on an answer that has not begun.
MAX_WAIT_S: Final = 5.0
# Of so many that begin, one is the one that came first, if it has waited too long. Were it every
# one, each policy would be first come, first served whenever there is more work than can be done:
# just when it matters who goes first.
TURNS: Final = 4
# So many of the queue, by arrival, are put in order of what is known of them: more would take
# longer than the step that they wait for.
_MAX_SORTED = 128
# Beginnings looked up in a step; each costs a walk through the tree, 20 µs for a prompt of 1,000
# tokens.
_MAX_LOOKUPS = 16


class Policy(Protocol):
    """Puts those that wait in order. `waiting` begins with those that were put to the front, and
    goes on in order of arrival.

    preempts: one may take the place of a running one of lower priority. counts: it wants to know
    what is computed for whom.
    """

    @property
    def preempts(self) -> bool: ...

    @property
    def counts(self) -> bool: ...

    def order(self, waiting: Many[Sequence]) -> list[Sequence]: ...

    def count(self, tenant: str, num_tokens: int) -> None:
        """So many tokens are computed for `tenant` in a step."""
        ...


class FirstCome:
    """In order of arrival."""

    preempts = False
    counts = False

    def order(self, waiting: Many[Sequence]) -> list[Sequence]:
        return list(waiting)

    def count(self, tenant: str, num_tokens: int) -> None:
        """It makes no difference."""


class LongestPrefix:
    """The one of which most is in the cache goes first, before that is needed for something else;
    of equal ones, who came first.
    """

    preempts = False
    counts = False

    def __init__(self, kv: KvCache) -> None:
        self._kv = kv
        self._next = 0

    def order(self, waiting: Many[Sequence]) -> list[Sequence]:
        first, rest = _split(waiting)
        head, tail = rest[:_MAX_SORTED], rest[_MAX_SORTED:]
        self._look_up(head)
        head.sort(key=lambda seq: -max(seq.num_known_tokens, 0))
        return [*first, *head, *tail]

    def count(self, tenant: str, num_tokens: int) -> None:
        """It makes no difference."""

    def _look_up(self, head: Many[Sequence]) -> None:
        """Those of which nothing was ever looked up, and of the others some in turn, as the tree
        changes with every step.
        """
        new = [seq for seq in head if seq.num_known_tokens < 0][:_MAX_LOOKUPS]
        num_again = min(_MAX_LOOKUPS - len(new), len(head))
        start = self._next % max(len(head), 1)
        again = islice(chain(head[start:], head), num_again)
        self._next = start + num_again
        for seq in (*new, *again):
            match = self._kv.match(seq.namespace, seq.tokens, seq.num_reusable)
            seq.num_known_tokens = match.num_tokens


class HighestPriority:
    """The highest priority goes first, also before others that have run and were sent back; of
    equal ones, who has run, then who came first.
    """

    preempts = True
    counts = False

    def order(self, waiting: Many[Sequence]) -> list[Sequence]:
        # By the last of these first: sorts are stable, and quick where little is to be done.
        first, rest = _split(waiting)
        checks = [seq for seq in first if seq.envelope.is_health_check]
        others = [seq for seq in first if not seq.envelope.is_health_check]
        for some in (checks, others, rest):
            some.sort(key=attrgetter("number"))
        by_priority = attrgetter("request.envelope.priority")
        ordered = sorted([*others, *rest], key=by_priority, reverse=True)
        return [*sorted(checks, key=by_priority, reverse=True), *ordered]

    def count(self, tenant: str, num_tokens: int) -> None:
        """It makes no difference."""


class FairShare:
    """Tenants take turns, so that each gets as many tokens computed as the others that want some;
    of one tenant's, who came first.

    A tenant's count starts where the least of those stands that are waiting: nobody saves up by
    asking for nothing, and nobody loses what it is owed, or what it owes, by a pause.
    """

    preempts = False
    counts = True

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._least = 0

    def order(self, waiting: Many[Sequence]) -> list[Sequence]:
        first, rest = _split(waiting)
        queues: defaultdict[str, deque[Sequence]] = defaultdict(deque)
        for seq in rest:
            queues[seq.envelope.tenant].append(seq)
        self._level(queues)
        owed = {tenant: self._served[tenant] for tenant in queues}
        ordered = first
        # Only so many can begin at a time, and the order changes as they do.
        for _ in range(min(len(rest), _MAX_SORTED)):
            tenant = min(owed, key=owed.__getitem__)
            seq = queues[tenant].popleft()
            ordered.append(seq)
            # As if its prompt were computed already, so that others come between its like.
            owed[tenant] += len(seq.tokens)
            if not queues[tenant]:
                del owed[tenant]
        return ordered

    def count(self, tenant: str, num_tokens: int) -> None:
        self._served[tenant] = max(self._served.get(tenant, 0), self._least) + num_tokens

    def _level(self, tenants: Iterable[str]) -> None:
        """Raise the newly come to the least that one who waits has, and forget those below it."""
        known = [self._served[tenant] for tenant in tenants if tenant in self._served]
        self._least = max(self._least, min(known, default=self._least))
        for tenant in tenants:
            self._served[tenant] = max(self._served.get(tenant, 0), self._least)
        self._served = {
            tenant: served
            for tenant, served in self._served.items()
            if served > self._least or tenant in tenants
        }


class Ageing:
    """A policy under which nobody waits for ever: one in `TURNS` that begin is the one that came
    first, once that has waited for `MAX_WAIT_S`.

    So who has k older ones before it begins when it has waited so long and `TURNS`·(k + 1) more
    have begun, at the latest, whoever comes meanwhile.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._num_others = 0
        self._aged: deque[Sequence] = deque()

    def order(self, waiting: Many[Sequence], now_s: float) -> Iterable[Sequence]:
        """Of a deep queue no more is put in order than is taken."""
        ordered = self.policy.order(waiting)
        aged = sorted((seq for seq in waiting if is_aged(seq, now_s)), key=lambda seq: seq.number)
        self._aged = deque(aged)
        if not aged:
            return ordered
        return _interleaved(ordered, aged, self._num_others)

    def began(self, seq: Sequence) -> None:
        """One of those that were put in order runs now."""
        while self._aged and self._aged[0].kv is not None and self._aged[0] is not seq:
            self._aged.popleft()
        if self._aged and self._aged[0] is seq:
            self._num_others = 0
        elif not seq.envelope.is_health_check:
            self._num_others += 1


def is_aged(seq: Sequence, now_s: float) -> bool:
    """Whether it has waited too long, all times that it waited together."""
    return seq.waited_s + now_s - seq.waits_from_s >= MAX_WAIT_S


def new_policy(name: PolicyName, kv: KvCache) -> Ageing:
    policies: dict[PolicyName, Policy] = {
        "lpm": LongestPrefix(kv),
        "fcfs": FirstCome(),
        "priority": HighestPriority(),
        "fair": FairShare(),
    }
    return Ageing(policies[name])


def _split(waiting: Many[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """Those that were put to the front, and the others."""
    num_first = 0
    while num_first < len(waiting) and waiting[num_first].is_first:
        num_first += 1
    return list(waiting[:num_first]), list(waiting[num_first:])


def _interleaved(
    ordered: Many[Sequence], aged: Many[Sequence], num_others: int
) -> Iterator[Sequence]:
    """`ordered`, with the next of `aged` wherever `TURNS` − 1 others have begun since the last.

    Health checks stay where they are: they take nobody's turn.
    """
    oldest = iter(aged)
    taken: set[int] = set()
    for seq in ordered:
        if seq.envelope.is_health_check:
            taken.add(seq.number)
            yield seq
            continue
        if num_others >= TURNS - 1:
            old = next((one for one in oldest if one.number not in taken), None)
            if old is not None:
                taken.add(old.number)
                num_others = 0
                yield old
        if seq.number not in taken:
            taken.add(seq.number)
            num_others += 1
            yield seq
