"""Write `prompts.json`: the token ids that every parity figure is measured on.

    python -m bench.parity.prompts --model smollm2.gguf

Twenty-two prompts of 1 to 2,000 tokens: prose, code, many scripts, chats, blanks, random ids. The
ids are kept, not the texts, so that the figures do not depend on a tokenizer.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from bench.parity.tokenizer_goldens import read_vocab, smollm2_encoders

_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

_PYTHON = '''import heapq
from collections import defaultdict


class Graph:
    """A weighted, directed graph."""

    def __init__(self):
        self.edges = defaultdict(list)

    def add(self, source, target, weight=1.0):
        if weight < 0:
            raise ValueError("weights must not be negative")
        self.edges[source].append((target, weight))

    def shortest(self, start):
        """Return the length of the shortest path from start to each node."""
        best = {start: 0.0}
        queue = [(0.0, start)]
        while queue:
            length, node = heapq.heappop(queue)
            if length > best.get(node, float("inf")):
                continue
            for target, weight in self.edges[node]:
                candidate = length + weight
                if candidate < best.get(target, float("inf")):
                    best[target] = candidate
                    heapq.heappush(queue, (candidate, target))
        return best


if __name__ == "__main__":
    graph = Graph()
    graph.add("a", "b", 2)
    graph.add("b", "c", 3)
    graph.add("a", "c", 9)
    print(graph.shortest("a"))
'''

_RECIPE = (
    "To bake a simple loaf of bread, mix 500 g of flour with 350 ml of warm water, 10 g of salt and"
    " 7 g of dry yeast. Knead the dough for ten minutes, let it rise for an hour,"
)


def chat(*turns: tuple[str, str]) -> str:
    """`turns` of (role, content) in ChatML, ready for the assistant's answer."""
    rendered = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    return rendered + "<|im_start|>assistant\n"


def texts(prose: str, corpus: dict[str, str]) -> dict[str, tuple[str, int]]:
    """Name → (text, the most tokens to keep of it)."""
    paragraph = prose.index("As usual with slang")
    scripts = ("french", "german", "russian", "greek", "vietnamese", "polish", "turkish")
    asian = ("chinese", "japanese", "korean", "thai", "chinese_traditional")
    return {
        "one_token": ("The", 1),
        "two_tokens": ("Once upon", 2),
        "question": ("The capital of France is", 16),
        "recipe": (_RECIPE, 64),
        "chat_short": (
            chat(("system", _SYSTEM), ("user", "What is the boiling point of water?")),
            64,
        ),
        "chat_turns": (
            chat(
                ("system", "You answer briefly."),
                ("user", "Name three birds."),
                ("assistant", "Owl, heron, and swift."),
                ("user", "Which of them flies fastest? Explain why in one sentence."),
            ),
            128,
        ),
        "python": (_PYTHON, 400),
        "c": (corpus["c_tabs"], 128),
        "markup": (corpus["json"] + "\n" + corpus["html"] + "\n" + corpus["sql"], 256),
        "european": ("\n".join(corpus[name] for name in scripts), 400),
        "east_asian": ("\n".join(corpus[name] for name in asian), 400),
        "arabic_hindi": (corpus["arabic"] + "\n" + corpus["hindi"], 300),
        "emoji": (corpus["emoji"] + corpus["emoji_zwj"] + corpus["mixed_scripts"], 200),
        "blanks": (corpus["mixed_blank"] + corpus["spaces_1_to_12"] + corpus["newlines_runs"], 200),
        "numbers": (" ".join(str(n * n) for n in range(1, 60)), 200),
        "repeats": ("to be or not " * 60, 240),
        "prose_129": (prose[paragraph:], 129),
        "prose_512": (prose[paragraph:], 512),
        "prose_1100": (prose[paragraph + 3_000 :], 1_100),
        "prose_2000": (prose, 2_000),
    }


def random_ids(count: int, vocab_size: int, seed: int) -> list[int]:
    """`count` ids drawn evenly from the ordinary tokens."""
    drawn: list[int] = np.random.default_rng(seed).integers(32, vocab_size, count).tolist()
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the prompts of the parity figures.")
    parser.add_argument("--model", type=Path, required=True, help="SmolLM2 as GGUF")
    parser.add_argument("--golden", type=Path, default=Path("tests/golden"))
    options = parser.parse_args()
    vocab = read_vocab(options.model)
    _, encode = smollm2_encoders(vocab)
    corpus_path = options.golden / "tokenizer" / "corpus.json"
    corpus = {entry["name"]: entry["text"] for entry in json.loads(corpus_path.read_text())}
    prose = (options.golden / "parity" / "text.txt").read_text()
    prompts = {name: encode(text)[:most] for name, (text, most) in texts(prose, corpus).items()}
    prompts["random_64"] = random_ids(64, len(vocab.pieces), seed=64)
    prompts["random_600"] = random_ids(600, len(vocab.pieces), seed=600)
    lines = [f'"{name}": {json.dumps(ids, separators=(",", ":"))}' for name, ids in prompts.items()]
    out = options.golden / "parity" / "prompts.json"
    out.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    for name, ids in prompts.items():
        print(f"{name:14} {len(ids):5} tokens")
    print(f"{out}: {sum(map(len, prompts.values()))} tokens, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
