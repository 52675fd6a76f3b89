"""lm-eval's `local-completions`, unpatched, run by its command line: through the gateway it gives the figures of the
engine behind it.

llama-server itself can do one half of lm-eval's tasks, those in which the model writes; their figures are compared with
its own. It takes no `echo` and has its log-probabilities in another shape, so lm-eval ends with an error at each task
that weighs given answers or texts. Those figures are compared with what llama-server's `/completion` says of each token
among all of its vocabulary.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import build
from gateway.config import Config, Model
from tests.conftest import ROOT
from tests.engines.served import bare
from tests.gateway.running import FAST
from tests.patience import PATIENCE
from tests.provider.server import serve

pytestmark = pytest.mark.clients

Json = dict[str, Any]

CONTEXT = "<|im_start|>user\n{{question}}<|im_end|>\n<|im_start|>assistant\n"
CHOICES = ["Hello! How can I help you?", "You are welcome.", "I have no tool for that."]
DOCUMENTS: list[Json] = [
    {"question": "Hello", "answer": CHOICES[0], "best": 0},
    {"question": "Thanks!", "answer": CHOICES[1], "best": 1},
    {"question": "Say zebra.", "answer": "zebra.", "best": 2},
    {"question": "Hi there!", "answer": "Good-bye.", "best": 0},
]
"""best: of the choices. The model gives each answer but the last."""
WRITTEN, CHOSEN, ROLLED = "written", "chosen", "rolled"
TASKS: dict[str, Json] = {
    WRITTEN: {
        "output_type": "generate_until",
        "doc_to_text": CONTEXT,
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 24},
        "metric_list": [{"metric": "exact_match"}],
    },
    CHOSEN: {
        "output_type": "multiple_choice",
        "doc_to_text": CONTEXT,
        "doc_to_choice": CHOICES,
        "target_delimiter": "",
        "doc_to_target": "best",
        "metric_list": [{"metric": "acc"}],
    },
    ROLLED: {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
}
NEAR = 1e-3
"""How far two readings of one probability lie apart, which depends on what the engine had read before."""


@dataclass(frozen=True)
class Evaluation:
    """One run of lm-eval. tasks: a folder with a file for each. tokenizer: a folder in the form of transformers."""

    python: Path
    tasks: Path
    tokenizer: Path
    environment: dict[str, str]

    def run(self, url: str, out: Path, *names: str) -> tuple[Json, dict[str, list[Json]]]:
        """The figures of each task, and what came of each document, in order."""
        asked = f"model=tiny,base_url={url}/v1/completions,tokenizer={self.tokenizer},max_length=512,max_retries=1"
        command: list[str | Path] = [
            self.python,
            "-m",
            "lm_eval",
            "--model",
            "local-completions",
            "--model_args",
            asked,
        ]
        command += ["--include_path", self.tasks, "--tasks", ",".join(names), "--output_path", out, "--log_samples"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr
        (told,) = out.rglob("results_*.json")
        samples = {}
        for name in names:
            (written,) = out.rglob(f"samples_{name}_*.jsonl")
            samples[name] = [json.loads(line) for line in written.read_text("utf-8").splitlines()]
        figures: Json = json.loads(told.read_text("utf-8"))["results"]
        return figures, samples


@pytest.fixture(scope="module")
def engine(llama_server: Path, test_model: Path) -> Iterator[str]:
    """The base URL of a bare llama-server."""
    with bare(llama_server, "--model", test_model, "--host", "127.0.0.1", "--ctx-size", "512") as url:
        yield url


@pytest.fixture
def evaluation(clients: Path, environment: dict[str, str], test_model: Path, tmp_path: Path) -> Evaluation:
    python = clients / "lm-eval/bin/python"
    if not python.exists():
        pytest.skip("lm-eval is not installed: scripts/clients table does it")
    pytest.importorskip("gguf")
    tokenizer, tasks = tmp_path / "tokenizer", tmp_path / "tasks"
    export: list[str | Path] = [sys.executable, ROOT / "scripts/tiny_model/export_mlx.py", test_model, tokenizer]
    subprocess.run(export, check=True, timeout=PATIENCE)
    tasks.mkdir()
    documents = tasks / "documents.jsonl"
    documents.write_text("".join(json.dumps(one) + "\n" for one in DOCUMENTS), "utf-8")
    source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(documents)}}, "test_split": "test"}
    for name, task in TASKS.items():
        # JSON is YAML.
        (tasks / f"{name}.yaml").write_text(json.dumps({"task": name, **source, **task}), "utf-8")
    return Evaluation(python, tasks, tokenizer, environment)


@contextmanager
def gateway(engine: str, state: Path) -> Iterator[str]:
    model = Model(name="tiny", runtime="llama.cpp", base_url=engine, context_window=512, tool_call_format="pythonic")
    config = Config(source=state / "config.yaml", active_model="tiny", models={"tiny": model}, state_dir=state)
    with serve(build(config), lifespan="on", http=FAST) as url:
        yield url


class Engine:
    """What the engine itself says of texts, over its own API."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def _ask(self, path: str, **fields: Any) -> Json:
        answer: Json = self._http.post(path, json=fields).raise_for_status().json()
        return answer

    def tokens(self, text: str) -> list[int]:
        found: list[int] = self._ask("/tokenize", content=text, parse_special=True)["tokens"]
        return found

    def likelihood(self, before: list[int], after: list[int]) -> tuple[float, bool]:
        """The logarithm of the probability that `after` follows, and whether each of its tokens is the likeliest."""
        total, greedy = 0.0, True
        for at, token in enumerate(after):
            prompt = [*before, *after[:at]]
            answer = self._ask("/completion", prompt=prompt, n_predict=1, n_probs=1024, temperature=0)
            (written,) = answer["completion_probabilities"]
            likely = {one["id"]: one["logprob"] for one in written["top_logprobs"]}
            total += likely[token]
            greedy = greedy and likely[token] == max(likely.values())
        return total, greedy


def test_local_completions(engine: str, evaluation: Evaluation, tmp_path: Path) -> None:
    figures, samples = evaluation.run(engine, tmp_path / "bare", WRITTEN)
    with gateway(engine, tmp_path / "state") as url:
        ours, our_samples = evaluation.run(url, tmp_path / "ours", *TASKS)
    assert ours[WRITTEN] == figures[WRITTEN]
    assert ours[WRITTEN]["exact_match,none"] == 0.75
    assert our_samples[WRITTEN] == samples[WRITTEN]
    with httpx.Client(base_url=engine, timeout=PATIENCE) as http:
        told = Engine(http)
        hits = 0
        for document, sample in zip(DOCUMENTS, our_samples[CHOSEN], strict=True):
            # lm-eval counts the white space at the end of a context to the choice.
            context = CONTEXT.replace("{{question}}", document["question"]).rstrip()
            before = told.tokens(context)
            wholes = [told.tokens(f"{context}\n{choice}") for choice in CHOICES]
            expected = [told.likelihood(before, whole[len(before) :]) for whole in wholes]
            given = [(float(likelihood), greedy == "True") for ((likelihood, greedy),) in sample["resps"]]
            assert [one for one, _ in given] == pytest.approx([one for one, _ in expected], abs=NEAR)
            assert [greedy for _, greedy in given] == [greedy for _, greedy in expected]
            best = max(range(len(CHOICES)), key=lambda at: expected[at][0])
            hits += best == document["best"]
        assert ours[CHOSEN]["acc,none"] == hits / len(DOCUMENTS)
        for document, sample in zip(DOCUMENTS, our_samples[ROLLED], strict=True):
            expected_sum, _ = told.likelihood(told.tokens("<|startoftext|>"), told.tokens(document["answer"]))
            ((given_sum,),) = sample["resps"]
            assert float(given_sum) == pytest.approx(expected_sum, abs=NEAR)
