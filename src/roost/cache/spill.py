"""The second tier, as the books see it: which pages leave for it, and which come back. No bytes:
pages move when a plan says so.
"""

from array import array
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from roost.cache.digests import digest_of, next_digest
from roost.cache.pages import PagePool
from roost.cache.radix import Node, PrefixTree
from roost.core.plan import PAGE_TOKENS

# Read in one step at most. A page of SmolLM2-135M, 16 tokens in 360 KiB, is there in 1 ms (1.5 ms
# when it lies on the disk alone) and takes ten times as long to compute; so a step that reads is
# shorter than one that computes the same tokens, and nobody waits for more than about 30 ms.
_MAX_STEP_BYTES: Final = 8 << 20
# Written when the server ends. A disk takes that in half a second, a slow one in three.
_MAX_LAST_BYTES: Final = 256 << 20


class PageStore(Protocol):
    """Where pages are kept by digest. What it says it has may still turn out to be gone.

    let_wait: from now on who brings pages may be held up, so that none is refused for lack of time.
    """

    page_bytes: int

    def __contains__(self, digest: bytes, /) -> bool: ...

    @property
    def num_pages(self) -> int: ...

    def flush(self) -> None: ...

    def let_wait(self) -> None: ...


class Move(NamedTuple):
    """A page, and the digest under which its content is kept."""

    page: int
    digest: bytes


class Moves(NamedTuple):
    """Pages to be saved before anything else is done, and to be loaded before one computes."""

    saves: tuple[Move, ...] = ()
    loads: tuple[Move, ...] = ()


class _Coming(NamedTuple):
    """A page on its way back, and its tokens as int32 bytes."""

    move: Move
    tokens: bytes


@dataclass(frozen=True, slots=True)
class _Fetch:
    """Pages that belong below `node`, which is held, one below the other."""

    node: Node
    pages: tuple[_Coming, ...]


class Spill:
    """Pages on their way to the store and back.

    A page that left the tree may be in other hands already, so it is saved by the next plan before
    anything else is done. One that comes back is the tree's once `land` is told that it was read.
    """

    def __init__(self, store: PageStore, tree: PrefixTree, pool: PagePool) -> None:
        self.store = store
        self.num_fetched = 0
        self._tree = tree
        self._pool = pool
        self._saves: dict[bytes, Move] = {}
        # In a step that failed: who would try again might fail for ever.
        self._failed: set[bytes] = set()
        self._fetches: list[_Fetch] = []
        self._max_step_pages = max(1, _MAX_STEP_BYTES // store.page_bytes)

    # ---- questions

    @property
    def coming(self) -> list[int]:
        """Pages that are on their way."""
        return [coming.move.page for fetch in self._fetches for coming in fetch.pages]

    @property
    def held(self) -> list[Node]:
        return [fetch.node for fetch in self._fetches]

    def beyond(self, node: Node, tokens: "array[int]", start: int, limit: int) -> list[bytes]:
        """Digests of the full pages that the store has of `tokens[start:limit]`, behind `node`."""
        digest, found = digest_of(node), []
        while start + PAGE_TOKENS <= limit:
            digest = next_digest(digest, tokens[start : start + PAGE_TOKENS].tobytes())
            if digest not in self.store or digest in self._failed:
                break
            found.append(digest)
            start += PAGE_TOKENS
        return found

    @property
    def num_room(self) -> int:
        """How many more pages may come in this step."""
        return self._max_step_pages - len(self.coming)

    def is_coming(self, digest: bytes) -> bool:
        return any(
            coming.move.digest == digest for fetch in self._fetches for coming in fetch.pages
        )

    # ---- verbs

    def leave(self, nodes: list[Node]) -> None:
        """These are evicted: keep those that are whole, and first what is before them and is not
        kept yet. Without its beginning a page is found by nobody.
        """
        for node in nodes:
            if node.num_tokens < PAGE_TOKENS:
                continue
            path = []
            at: Node | None = node
            while at is not None and not at.is_root and not self._is_kept(digest_of(at)):
                path.append(Move(at.page, digest_of(at)))
                at = at.parent
            self._saves |= {move.digest: move for move in reversed(path)}

    def begin(
        self,
        node: Node,
        tokens: "array[int]",
        start: int,
        digests: list[bytes],
        pages: tuple[int, ...],
    ) -> None:
        """Bring pages back, into `pages`, that belong below `node`, which the caller has held."""
        coming = []
        for page, digest in zip(pages, digests, strict=True):
            coming.append(
                _Coming(Move(page, digest), tokens[start : start + PAGE_TOKENS].tobytes())
            )
            start += PAGE_TOKENS
        self._fetches.append(_Fetch(node, tuple(coming)))

    def leave_all(self) -> tuple[Move, ...]:
        """The last saves of all: what was used last of what the tree has."""
        max_pages = _MAX_LAST_BYTES // self.store.page_bytes
        self.leave(self._tree.whole_pages[:max_pages])
        self.store.let_wait()
        return self.take_moves().saves

    def take_moves(self) -> Moves:
        """For the next plan. `land` is called once it is known what came of them."""
        saves, self._saves = tuple(self._saves.values()), {}
        return Moves(saves, tuple(one.move for fetch in self._fetches for one in fetch.pages))

    def land(self, unread: Collection[int] | None) -> None:
        """The last moves were made, but for the pages `unread`; None: nobody knows, so for none.
        Enter what came; of a row of pages, none behind one that could not be read.
        """
        left: list[int] = []
        if unread is None:
            self._failed |= {one.move.digest for fetch in self._fetches for one in fetch.pages}
        fetches, self._fetches = self._fetches, []
        for fetch in fetches:
            node, is_whole = fetch.node, unread is not None
            for coming in fetch.pages:
                page = coming.move.page
                is_whole = is_whole and page not in (unread or ())
                if not is_whole:
                    left.append(page)
                    continue
                node, is_new = self._tree.extend(node, coming.tokens, page)
                self.num_fetched += 1
                if not is_new:
                    left.append(page)
            self._tree.release(node)
        self._pool.give_back(tuple(left))

    def flush(self) -> None:
        """Forget what is kept, and what was to be."""
        self._saves.clear()
        self.store.flush()

    def _is_kept(self, digest: bytes) -> bool:
        return digest in self._saves or digest in self.store
