"""``art-trainer eval``: its flags.

The work lies in :mod:`art_trainer.commands.evaluating` and :mod:`art_trainer.commands.verifying`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from art_trainer.cli_flags import EnvArgs, JsonFile
from art_trainer.errors import ConfigError

_EPILOG = (
    "Examples:\n\n`art-trainer eval --policy bm25 --policy art-tiny --compare`.\n\n"
    "`art-trainer eval --suite email-v0-test --policy runs/mine --samples 4 --json after.json`.\n\n"
    "`art-trainer eval --verify after.json` plays it again and compares.\n\n"
    "`art-trainer eval --policy openai:qwen3@http://localhost:8000/v1 --by difficulty`."
)


_Policies = Annotated[
    list[str],
    typer.Option(
        help="What to evaluate: a run's or checkpoint's folder, a Hugging Face name or path, "
        "openai:MODEL@URL (its key from OPENAI_API_KEY), a baseline's name (baseline:NAME where it is "
        "ambiguous), or art-tiny. Repeatable."
    ),
]
_Suite = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.yaml",
        help="Play these fixed tasks and seeds; `art-trainer suites` lists the names.",
    ),
]
_Env = Annotated[
    str | None,
    typer.Option(help="Id of a Gymnasium environment with text in and out. [default: art/Email-v0]"),
]
_Split = Annotated[str | None, typer.Option(help="Split of the tasks. Without it: test where there is one.")]
_Episodes = Annotated[
    int | None, typer.Option(min=1, help="How many. Without it: every task of the split once.")
]
_Samples = Annotated[int | None, typer.Option(min=1, help="Attempts at each start, for pass@k. [default: 1]")]
_Greedy = Annotated[bool, typer.Option("--greedy", help="The same as --temperature 0.")]
_Temperature = Annotated[
    float | None, typer.Option(min=0, help="Sampling temperature; 0 is greedy. [default: 0]")
]
_MaxTokens = Annotated[
    int | None,
    typer.Option("--max-completion-length", min=1, help="Most tokens of one reply. [default: 256]"),
]
_Seed = Annotated[
    int | None,
    typer.Option(min=0, help="The same seed gives the same tasks and the same episodes. [default: 0]"),
]
_MaxBatch = Annotated[int, typer.Option(min=1, help="Most conversations a local model holds at once.")]
_Device = Annotated[str | None, typer.Option(help="Where a local model runs, such as cpu or cuda.")]
_Compare = Annotated[
    bool, typer.Option("--compare", help="Also the paired difference of each policy to the one before it.")
]
_By = Annotated[
    str | None, typer.Option(metavar="FIELD", help="Also apart by a field of the tasks: difficulty.")
]
_Verify = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Play what a --json file holds again; exit code 1 where results differ."
    ),
]


def evaluate(
    context: typer.Context,
    policy: _Policies = [],  # noqa: B006 (typer reads it, nobody changes it)
    suite: _Suite = None,
    env: _Env = None,
    env_args: EnvArgs = [],  # noqa: B006
    split: _Split = None,
    episodes: _Episodes = None,
    samples: _Samples = None,
    greedy: _Greedy = False,
    temperature: _Temperature = None,
    max_tokens: _MaxTokens = None,
    seed: _Seed = None,
    max_batch: _MaxBatch = 256,
    device: _Device = None,
    compare: _Compare = False,
    by: _By = None,
    json_file: JsonFile = None,
    verify: _Verify = None,
) -> None:
    """Evaluate policies on the same tasks: success with its interval, reward and its parts, turns, tokens."""
    from art_trainer.commands.evaluating import EvalRequest, run_eval
    from art_trainer.commands.settings import parse_pairs
    from art_trainer.commands.verifying import run_verify

    if verify is not None:
        _refuse_others(context)
        run_verify(verify, Console())
        return
    request = EvalRequest(
        policies=policy,
        suite=suite,
        env=env,
        env_args=parse_pairs(env_args, "--env-args"),
        split=split,
        episodes=episodes,
        seed=seed,
        samples=samples,
        temperature=0.0 if greedy else temperature,
        max_completion_length=max_tokens,
        max_batch=max_batch,
        device=device,
        compare=compare,
        by=by,
        json_file=json_file,
    )
    run_eval(request, Console())


def _refuse_others(context: typer.Context) -> None:
    """Refuse flags beside --verify, which has all it needs in its file."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given != ["verify"]:
        raise ConfigError("--verify plays what its file says: give no other flag beside it")


def add_eval_command(app: typer.Typer) -> None:
    """Give the ``art-trainer`` command its ``eval``."""
    app.command("eval", epilog=_EPILOG)(evaluate)
