"""``art-gym coding`` and ``art-gym sandbox``: check programming tasks, and the isolation of programs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from art_gym.cli.common import user_errors

if TYPE_CHECKING:
    from art_gym.envs.coding.sandbox.backends import BackendName
    from art_gym.envs.coding.sandbox.check import Layer


coding_app = typer.Typer(help="Programming tasks for art/Coding-v0.", no_args_is_help=True)
sandbox_app = typer.Typer(help="The sandbox of art/Coding-v0.", no_args_is_help=True)
for _app in (coding_app, sandbox_app):
    _app.callback()(lambda: None)  # keeps the only command a sub-command


@coding_app.command("validate")
def validate_command(
    file: Annotated[Path, typer.Argument(help="The tasks.", show_default=False)],
    format: Annotated[str | None, typer.Option(help="The file's format.", show_default="detected")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the tasks that are not broken here.")] = None,
) -> None:
    """Grade the reference and wrong answers of every task in a file, and report broken tasks.

    FILE is the project's own JSONL, or HumanEval, MBPP, APPS, code_contests or Exercism as JSONL
    (also .gz, .xz), or "builtin". A task is broken if its reference fails, or if an answer passes that
    ignores its input. The exit code is 1 if one is broken.

    Example: art-gym coding validate HumanEval.jsonl.gz --out humaneval.jsonl
    """
    from art_gym.envs.coding.loaders.load import Loaded, load_problems, save_problems
    from art_gym.envs.coding.problems.builtin import load
    from art_gym.envs.coding.sharing import shared_sandbox
    from art_gym.envs.coding.validate import validate

    with user_errors():
        if out is not None and not out.parent.is_dir():
            raise ValueError(f"--out {out}: there is no folder {out.parent}")
        builtin = str(file) == "builtin"
        loaded = Loaded(load(), format="built in") if builtin else load_problems(file, format)
        print(loaded.summary())
        problems = loaded.problems
        with Progress(console=Console(stderr=True), transient=True) as bar:
            checked = bar.track(validate(problems, shared_sandbox()), len(problems), description="validating")
            findings = [finding for found in checked for finding in found]
        broken = {finding.problem for finding in findings if finding.broken}
        for finding in findings:
            print(f"{'broken' if finding.broken else 'weak'}: {finding.problem}: {finding.what}")
        print(f"{len(problems) - len(broken)} of {len(problems)} tasks are sound")
        if out is not None:
            save_problems((problem for problem in problems if problem.id not in broken), out)
            print(f"written to {out}")
    raise typer.Exit(1 if broken else 0)


@sandbox_app.command("check")
def check_command(
    layers: Annotated[
        str, typer.Option(help="What to try: zygote or container.", show_default="the best")
    ] = "auto",
) -> None:
    """Show what isolates programs on this machine, and try to break out of it.

    Prints which ways of isolation work here, then runs programs that try to escape; they do no harm if they
    succeed. The exit code is 1 if one escapes, or if no isolation works.

    Example: art-gym sandbox check --layers container
    """
    from art_gym.envs.coding.sandbox.check import available_backends, zygote_layers

    found = available_backends()
    _show("isolation", found)
    _show("layers of the zygote", zygote_layers())
    if layers == "auto" and not any(backend.holds for backend in found):
        print("No sandbox works on this machine: programs are refused.")
        raise typer.Exit(1)
    raise typer.Exit(0 if _try_to_break(layers) else 1)


def _try_to_break(layers: str) -> bool:
    """Run the programs that try to escape and print the results; return whether all were held."""
    from art_gym.envs.coding.sandbox import Sandbox
    from art_gym.envs.coding.sandbox.check import probe

    table = Table("program", "tries", "", "ended", box=None, pad_edge=False)
    held = []
    with user_errors(), Sandbox(layers=cast("BackendName", layers)) as sandbox:
        title = " + ".join(sandbox.layers)
        for result in probe(sandbox):
            word = "held" if result.held else "GOT OUT"
            if not result.after:
                word += ", sandbox broken"
            held.append(result.held and result.after)
            table.add_row(result.probe.name, result.probe.what, word, result.run.why or result.run.outcome)
    console = Console()
    console.print(f"\n[bold]programs that try to get out of {title}[/bold]")
    console.print(table)
    console.print(f"\n{sum(held)} of {len(held)} held")
    return all(held)


def _show(title: str, layers: "list[Layer]") -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for layer in layers:
        table.add_row(layer.name, "holds" if layer.holds else "no", Text(layer.detail))
    console = Console()
    console.print(f"[bold]{title}[/bold]")
    console.print(table)
