"""The fake model's text side: each token is a letter, the last of them the end of the text."""

from tests.sim.fake_runner import EOS_ID, VOCAB_SIZE

from roost.core.errors import RequestError
from roost.text import ChatTemplate, Tokenizer, VocabKind, VocabSpec

TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


class LetterEncoder:
    """Letters a … y, and nothing else."""

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        ids = [ord(letter) - ord("a") for letter in text]
        if any(not 0 <= token_id < EOS_ID for token_id in ids):
            raise RequestError("The fake model knows letters only.")
        return ids


def letter_tokenizer() -> Tokenizer:
    spec = VocabSpec(
        kind=VocabKind.SENTENCEPIECE,
        pieces=[chr(ord("a") + i) for i in range(VOCAB_SIZE - 1)] + ["<end>"],
        types=[1] * (VOCAB_SIZE - 1) + [3],
        eos_id=EOS_ID,
        eos_ids=frozenset({EOS_ID}),
    )
    return Tokenizer(spec, LetterEncoder())


def letter_template() -> ChatTemplate:
    return ChatTemplate(TEMPLATE)
