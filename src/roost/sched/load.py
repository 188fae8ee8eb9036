"""How busy the scheduler is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedLoad:
    """How busy the scheduler is. num_waiting: in the queue or held for another turn.
    num_used_pages: those that live requests hold, of num_pages. num_cached_pages: in the prefix
    tree, some of them in use as well. num_drafts, num_right_drafts: tokens that speculation tried,
    and those of them that were right. num_stored_pages: on disk. num_fetched_pages: that ever came
    back from there.
    """

    num_running: int
    num_waiting: int
    num_used_pages: int
    num_cached_pages: int
    num_pages: int
    num_steps: int
    generated_tokens_total: int
    num_drafts: int = 0
    num_right_drafts: int = 0
    num_stored_pages: int = 0
    num_fetched_pages: int = 0
