"""``art-gym sandbox``: what isolates programs on this machine, and whether it holds.

As `art_gym.cli`, of which it is a part, it imports typer and rich only when a command runs, and does without
``from __future__ import annotations``.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    import typer

    from art_gym.envs.coding.sandbox.check import Layer

_CHECK_HELP = """Show what isolates programs on this machine, and try to break out of it.

Prints which ways of isolation and which walls hold here, then runs programs that try to get out; they do no
harm where they succeed. The exit code is 1 when one gets out, or when nothing holds.

Example: art-gym sandbox check --layers bubblewrap
"""


def sandbox_app() -> "typer.Typer":
    """The ``sandbox`` command with its sub-commands."""
    import typer

    app = typer.Typer(help="The sandbox of art/Coding-v0.", no_args_is_help=True)
    # A callback keeps `check` a sub-command although it is the only one.
    app.callback()(lambda: None)
    app.command("check", help=_CHECK_HELP)(_command_check())
    return app


def _command_check() -> Callable[..., None]:
    import typer

    def command(
        layers: Annotated[
            str, typer.Option(help="What to try: zygote, bubblewrap, container.", show_default="the best")
        ] = "auto",
    ) -> None:
        from art_gym.envs.coding.sandbox.check import walls, ways

        found = ways()
        _show("isolation", found)
        _show("walls of the zygote", walls())
        if layers == "auto" and not any(way.holds for way in found):
            print("No sandbox holds on this machine: programs are refused.")
            raise typer.Exit(1)
        raise typer.Exit(0 if _try_to_break(layers) else 1)

    return command


def _try_to_break(layers: str) -> bool:
    """Run the programs and print what came of each; whether all were held."""
    from typing import cast

    import typer
    from rich.console import Console
    from rich.table import Table

    from art_gym.envs.coding.sandbox import Sandbox, SandboxUnavailable
    from art_gym.envs.coding.sandbox.backends import Layers
    from art_gym.envs.coding.sandbox.check import probe

    table = Table("program", "tries", "", "ended", box=None, pad_edge=False)
    held = []
    try:
        with Sandbox(layers=cast(Layers, layers)) as sandbox:
            title = " + ".join(sandbox.layers)
            for result in probe(sandbox):
                word = "held" if result.held else "GOT OUT"
                if not result.after:
                    word += ", sandbox broken"
                held.append(result.held and result.after)
                table.add_row(
                    result.probe.name, result.probe.what, word, result.run.why or result.run.outcome
                )
    except (SandboxUnavailable, ValueError) as error:
        print(f"art-gym: {error}")
        raise typer.Exit(2) from None
    console = Console()
    console.print(f"\n[bold]programs that try to get out of {title}[/bold]")
    console.print(table)
    console.print(f"\n{sum(held)} of {len(held)} held")
    return all(held)


def _show(title: str, layers: "list[Layer]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for layer in layers:
        table.add_row(layer.name, "holds" if layer.holds else "no", Text(layer.detail))
    console = Console()
    console.print(f"[bold]{title}[/bold]")
    console.print(table)
