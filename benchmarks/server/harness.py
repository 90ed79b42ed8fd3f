"""Compare lm-evaluation-harness, asking a server over HTTP, with `edgedec eval` on the same questions and the same text.

    python -m venv lm-eval && lm-eval/bin/python -m pip install 'lm_eval[api]'
    .venv/bin/python -m benchmarks.server.harness --lm-eval lm-eval/bin/lm_eval [-m demo] [--questions 20] [--json]

The harness runs in an environment of its own, because it brings many packages. It needs neither torch nor transformers here:
it asks the server for the tokens (``tokenizer_backend=remote``). Its model ``local-completions`` sends each question with
each choice to ``/v1/completions`` with ``echo`` and ``logprobs``, and adds the log-probabilities of the choice's tokens. The
task puts the text of the BOS token before each question, as `edgedec eval` does with the token.

The exit code is 1 if a figure differs by more than ``TOLERANCE``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgedec import demo
from edgedec.cli.console import print_table
from edgedec.errors import ToolError

__all__ = ["MODES", "TOLERANCE", "differences", "harness_figures", "own_figures", "task_files"]

TOLERANCE = 1e-6  # relative difference of a figure
CONTEXT = 1024  # tokens; each question, and the whole text, must fit
TEXT_CHARACTERS = 1_500  # least length of the text in characters; it must be one window in both programs
# Ways in which the harness sends its requests: ids or texts, one or several in a request, one or several at a time.
MODES: Mapping[str, Mapping[str, object]] = {
    "ids": {"tokenized_requests": True},
    "texts": {"tokenized_requests": False},
    "batches of 4": {"tokenized_requests": True, "batch_size": 4},
    "4 at a time": {"tokenized_requests": True, "num_concurrent": 4},
}
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
_QUESTIONS, _TEXT = "edgedec_questions", "edgedec_text"


def task_files(folder: Path, *, questions: Path, text: str, bos: str) -> None:
    """Write the two tasks of the harness to ``folder``: the questions, and the text as a single document.

    Parameters:
        folder: exists.
        questions: file of questions in the format of docs/evaluation.md.
        text: the text to predict.
        bos: spelling of the BOS token; empty if the model has none.
    """
    document = folder / "text.jsonl"
    document.write_text(json.dumps({"text": text}) + "\n", "utf-8")
    _write_task(
        folder,
        _QUESTIONS,
        data=questions,
        output_type="multiple_choice",
        doc_to_text=bos + "{{question}}",
        doc_to_choice="{{choices}}",
        doc_to_target="{{answer}}",
        target_delimiter="",  # the choices begin with their own space
        metric_list=[{"metric": "acc"}, {"metric": "acc_bytes"}],
    )
    _write_task(
        folder,
        _TEXT,
        data=document,
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "bits_per_byte"}],
    )


def _write_task(folder: Path, name: str, *, data: Path, **members: object) -> None:
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data.resolve())}},
        "test_split": "test",
        "num_fewshot": 0,
        **members,
    }
    (folder / f"{name}.yaml").write_text(json.dumps(task), "utf-8")  # JSON is YAML


def harness_figures(
    program: str, url: str, folder: Path, *, bos_id: int, mode: Mapping[str, object], api_key: str = ""
) -> dict[str, float]:
    """Run the harness against a server, and return its figures under the names of `edgedec eval`.

    Parameters:
        program: the program ``lm_eval``.
        url: address of the server.
        folder: has the tasks of ``task_files``; results are written below it.
        bos_id: id of the token that begins the text.
        mode: further arguments of the harness's model.
        api_key: the server's key.

    Raises:
        ToolError: the harness failed; the message ends with its output.
    """
    arguments: dict[str, object] = {
        "model": "any",
        "base_url": f"{url}/v1/completions",
        "tokenizer_backend": "remote",
        "custom_prefix_token_id": bos_id,
        "max_length": CONTEXT,
        "max_retries": 1,
        **({"auth_token": api_key} if api_key else {}),
        **mode,
    }
    output = Path(tempfile.mkdtemp(dir=folder))
    command = [program, "run", "--model", "local-completions", "--include_path", str(folder)]
    command += ["--tasks", f"{_QUESTIONS},{_TEXT}", "--output_path", str(output)]
    batch = arguments.pop("batch_size", 1)
    command += [
        "--batch_size",
        str(batch),
        "--model_args",
        ",".join(f"{name}={value}" for name, value in arguments.items()),
    ]
    environment = {**os.environ, **_OFFLINE, "HF_HOME": str(folder / "cache"), "OPENAI_API_KEY": api_key}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    files = list(output.rglob("results*.json"))
    if finished.returncode or not files:
        raise ToolError(f"lm_eval ended with code {finished.returncode}: {finished.stderr[-2000:]}")
    results = json.loads(files[0].read_text("utf-8"))["results"]
    return {
        "accuracy": results[_QUESTIONS]["acc,none"],
        "accuracy_norm": results[_QUESTIONS]["acc_bytes,none"],
        "bits_per_byte": results[_TEXT]["bits_per_byte,none"],
    }


def own_figures(model: str, *, questions: Path, text: Path, kv_bits: int) -> dict[str, float]:
    """Return the same figures by `edgedec eval`."""
    command = [sys.executable, "-m", "edgedec", "eval", "-m", model, "--text", str(text), "--choices", str(questions)]
    command += ["-c", str(CONTEXT), "--kv-bits", str(kv_bits), "--json"]
    result = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return {
        "accuracy": result["choices"]["accuracy"],
        "accuracy_norm": result["choices"]["accuracy_norm"],
        "bits_per_byte": result["bits_per_byte"],
    }


def differences(own: Mapping[str, float], other: Mapping[str, float]) -> list[str]:
    """Return the names of the figures that differ by more than ``TOLERANCE``."""
    return [name for name in own if not math.isclose(own[name], other[name], rel_tol=TOLERANCE, abs_tol=TOLERANCE)]


def first_token(url: str) -> tuple[str, int]:
    """Return spelling and id of a server's BOS token.

    Raises:
        ToolError: the model has none.
    """
    with urllib.request.urlopen(f"{url}/tokenizer_info") as response:
        spelling = json.load(response)["bos_token"]
    if spelling is None:
        raise ToolError("the model has no BOS token, with which edgedec eval and this comparison begin each text")
    body = json.dumps({"content": spelling}).encode()
    request = urllib.request.Request(f"{url}/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return str(spelling), int(json.load(response)["tokens"][0])


@contextmanager
def running_server(model: str, *, kv_bits: int) -> Iterator[str]:
    """Run `edgedec serve` for the time of the block, and yield its address."""
    command = [sys.executable, "-m", "edgedec", "serve", "-m", model, "-c", str(CONTEXT), "--kv-bits", str(kv_bits)]
    with subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            address = re.search(r"at (http://\S+:\d+)", server.stderr.readline())
            if address is None:
                raise ToolError(f"edgedec serve did not start: {server.stderr.read()}")
            yield address[1]
        finally:
            server.terminate()
            server.communicate()


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--lm-eval", required=True, metavar="PROGRAM", help="the program lm_eval of its environment")
    parser.add_argument("-m", "--model", default="demo", metavar="BUNDLE", help="folder of the bundle, or 'demo'")
    parser.add_argument("--questions", type=int, default=20, metavar="N", help="number of the embedded questions")
    parser.add_argument("--kv-bits", type=int, default=16, choices=(32, 16, 8), help="bits of keys and values")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run both programs, print their figures, and return 1 if they differ."""
    arguments = _arguments(words)
    lines = demo.CHOICES.read_text("utf-8").splitlines(keepends=True)[: arguments.questions]
    stories = demo.HELD_OUT.read_text("utf-8")
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as temporary, running_server(arguments.model, kv_bits=arguments.kv_bits) as url:
        folder = Path(temporary)
        questions, text = folder / "questions.jsonl", folder / "text.txt"
        questions.write_text("".join(lines), "utf-8")
        text.write_text(stories[: stories.index("\n", TEXT_CHARACTERS)], "utf-8")
        figures["edgedec eval"] = own_figures(
            arguments.model, questions=questions, text=text, kv_bits=arguments.kv_bits
        )
        bos, bos_id = first_token(url)
        task_files(folder, questions=questions, text=text.read_text("utf-8"), bos=bos)
        for name, mode in MODES.items():
            figures[f"lm_eval, {name}"] = harness_figures(arguments.lm_eval, url, folder, bos_id=bos_id, mode=mode)
    own = figures["edgedec eval"]
    if arguments.json:
        print(json.dumps(figures))
    else:
        print_table(
            [["", *own], *([name, *(f"{value:.9f}" for value in row.values())] for name, row in figures.items())]
        )
    return int(any(differences(own, row) for row in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
