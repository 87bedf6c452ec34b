"""``art-trainer judge``: its flags. The work lies in :mod:`art_trainer.commands.judging`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from art_trainer.cli_flags import EnvArgs, EnvId, JsonFile, MaxTokens

_EVAL_EPILOG = (
    "Examples:\n\n`art-trainer judge eval --without-facts` rates the rubric on the embedded mailbox.\n\n"
    "`art-trainer judge eval --judge rubric --judge openai:qwen3@http://localhost:8000/v1 --env "
    "art/Coding-v0`.\n\n"
    "`art-trainer judge eval --env art/2048-v0 --policies random --policies greedy --policies snake`: chosen "
    "players, since some of a game take long.\n\n"
    "`art-trainer judge eval --judge noisy:0.3 --episodes runs/Email-v0-art-tiny-1`."
)

_Judges = Annotated[
    list[str],
    typer.Option(
        help="rubric, openai:MODEL@URL (its key from OPENAI_API_KEY), or noisy:P: a simulated judge that "
        "shuffles a share P of the groups and ranks the others by the true reward. Repeatable."
    ),
]
_Split = Annotated[
    str | None,
    typer.Option(help="Split of the tasks. Without it: test where there is one.", show_default=False),
]
_Groups = Annotated[int, typer.Option(min=1, help="How many groups; of recorded ones the first.")]
_Size = Annotated[int, typer.Option(min=2, help="Attempts a group.")]
_Policies = Annotated[
    list[str],
    typer.Option(
        help="Who attempts, in turn: a scripted player of the environment, or a policy as in eval, "
        "sampled at temperature 1. Repeatable. Without it: all scripted players."
    ),
]
_Noise = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="Each scripted player also plays with a share of random replies, drawn up to this; 0: not.",
    ),
]
_Recorded = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN", help="Judge this run's recorded episodes instead.", exists=True, file_okay=False
    ),
]
_WithoutFacts = Annotated[
    bool,
    typer.Option(
        "--without-facts", help="Also the rubric that is not told what was expected and what came of it."
    ),
]
_JudgeArgs = Annotated[
    list[str],
    typer.Option(
        metavar="KEY=VALUE", help="Argument of the judge model, such as cache=judge.db. Repeatable."
    ),
]
_Checks = Annotated[
    int,
    typer.Option(
        min=0, help="On how many groups a judge is also asked again, and in other orders; 0: on none."
    ),
]
_Orders = Annotated[int, typer.Option(min=2, help="In how many orders.")]
_Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same groups.")]
_Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw scores and taus here.")]

judge_app = typer.Typer(help="Judges: how well do they order attempts?", no_args_is_help=True)
# A callback keeps `eval` a sub-command although it is the only one.
judge_app.callback()(lambda: None)


@judge_app.command("eval", epilog=_EVAL_EPILOG)
def judge_eval(
    judge: _Judges = ["rubric"],  # noqa: B006 (typer reads it, nobody changes it)
    env: EnvId = "art/Email-v0",
    env_args: EnvArgs = [],  # noqa: B006
    split: _Split = None,
    groups: _Groups = 64,
    size: _Size = 8,
    policies: _Policies = [],  # noqa: B006
    noise: _Noise = 0.5,
    episodes: _Recorded = None,
    without_facts: _WithoutFacts = False,
    judge_args: _JudgeArgs = [],  # noqa: B006
    checks: _Checks = 16,
    orders: _Orders = 4,
    seed: _Seed = 0,
    max_tokens: MaxTokens = 256,
    json_file: JsonFile = None,
    plot_file: _Plot = None,
) -> None:
    """Compare judges' scores with the true reward on the same groups.

    Kendall's tau, whether the judge's best is the truly best, what the order shown and asking again change,
    and what a group costs.
    """
    from art_trainer.commands.judging import JudgeEvalRequest, run_judge_eval
    from art_trainer.commands.settings import parse_pairs

    request = JudgeEvalRequest(
        judges=judge,
        env=env,
        env_args=parse_pairs(env_args, "--env-args"),
        split=split,
        groups=groups,
        size=size,
        policies=policies,
        noise=noise,
        recorded=episodes,
        without_facts=without_facts,
        judge_args=parse_pairs(judge_args, "--judge-args"),
        checks=checks,
        orders=orders,
        seed=seed,
        max_tokens=max_tokens,
        json_file=json_file,
        plot_file=plot_file,
    )
    run_judge_eval(request, Console())
