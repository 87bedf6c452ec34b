"""The ``art-gym`` command: import real mail into a store and look into it.

Only this module of ``art_gym`` uses typer and rich, and only when a command runs. (So it does without
``from __future__ import annotations``: typer could not resolve annotations that name a local import.)
"""

import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from art_gym.cli_coding import coding_app
from art_gym.cli_envs import add_env_commands
from art_gym.cli_mcp import SERVE_MCP_HELP, command_serve_mcp
from art_gym.cli_new import add_new_command
from art_gym.cli_sandbox import sandbox_app

if TYPE_CHECKING:
    import typer

    from art_gym.envs.mail.imports import ImportReport

_IMPORT_HELP = """Import mail into a mailbox file that art/Email-v0 can search.

PATH is an mbox or JSONL file (also .gz, .xz, .bz2), an .eml file, a Maildir, a folder of .eml files, or a
tree as of the Enron release. Messages that cannot be read are listed with the reason.

Example: art-gym mail import ~/Mail/archive.mbox --out box.db
"""
_SEARCH_HELP = """Search a mailbox file: every word first, then as many as possible.

Example: art-gym mail search box.db quarterly budget --sender ann --after 2024-01-01
"""
_QUESTIONS_HELP = """Make or convert questions about a mailbox, for art/Email-v0's `questions`.

Without --source, known-item questions are made from the mail itself. With it, a published set is converted:
ART-E's JSONL (art-e) or the annotated Enron questions (enron-qa).

Example: art-gym mail questions box.db --out questions.jsonl --count 500
"""


def main() -> None:
    """Run the ``art-gym`` command with the arguments of this process."""
    try:
        app = _build()
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit(f'art-gym needs {error.name}, which is not installed; run: pip install "art-gym[cli]"')
    app()


def _build() -> "typer.Typer":
    """The command with its sub-commands."""
    import rich  # noqa: F401 - so that main() can say when it is missing
    import typer

    app = typer.Typer(
        help="Text environments for reinforcement learning.", no_args_is_help=True, add_completion=False
    )
    mail = typer.Typer(help="Mailboxes for art/Email-v0.", no_args_is_help=True)
    app.add_typer(mail, name="mail")
    mail.command("import", help=_IMPORT_HELP)(_command_import())
    mail.command("search", help=_SEARCH_HELP)(_command_search())
    mail.command("questions", help=_QUESTIONS_HELP)(_command_questions())
    add_env_commands(app)
    add_new_command(app)
    app.add_typer(coding_app(), name="coding")
    app.add_typer(sandbox_app(), name="sandbox")
    app.command("serve-mcp", help=SERVE_MCP_HELP)(command_serve_mcp())
    return app


def _command_import() -> Callable[..., None]:
    import typer

    def command(
        path: Annotated[Path, typer.Argument(help="The mail to import.", show_default=False)],
        out: Annotated[Path, typer.Option(help="The mailbox file to write.", show_default=False)],
        format: Annotated[
            str | None, typer.Option(help="mbox, maildir, eml, enron or jsonl.", show_default="guessed")
        ] = None,
        force: Annotated[bool, typer.Option("--force", help="Replace the file at --out.")] = False,
    ) -> None:
        if out.exists() and not force:
            _fail(f"{out} exists already; choose another --out, or replace it with --force")
        try:
            report = _import_with_progress(path, out, format)
        except (ValueError, OSError) as error:
            _fail(str(error))
        except KeyboardInterrupt:
            print(f"interrupted: nothing was written to {out}", file=sys.stderr)
            raise typer.Exit(130) from None
        print(report.summary())
        print(f"written to {out}; look into it with: art-gym mail search {out} WORDS")

    return command


def _command_search() -> Callable[..., None]:
    import typer

    def command(
        box: Annotated[Path, typer.Argument(help="The mailbox file.", show_default=False)],
        query: Annotated[list[str], typer.Argument(help="Words to look for.", show_default=False)],
        sender: Annotated[str | None, typer.Option(help="Only mail from this person.")] = None,
        recipient: Annotated[str | None, typer.Option(help="Only mail to this person.")] = None,
        after: Annotated[str | None, typer.Option(help="First day, as 2024-01-31.")] = None,
        before: Annotated[str | None, typer.Option(help="Last day, as 2024-01-31.")] = None,
        mailbox: Annotated[str | None, typer.Option(help="Only mail in this mailbox.")] = None,
        limit: Annotated[int, typer.Option(help="The most hits to show.", min=1)] = 10,
    ) -> None:
        try:
            _show_hits(box, " ".join(query), sender, recipient, after, before, mailbox, limit)
        except (ValueError, OSError) as error:
            _fail(str(error))

    return command


def _command_questions() -> Callable[..., None]:
    import typer

    def command(
        box: Annotated[Path, typer.Argument(help="The mailbox file.", show_default=False)],
        out: Annotated[Path, typer.Option(help="The JSONL file to write.", show_default=False)],
        source: Annotated[Path | None, typer.Option(help="A published set to convert.")] = None,
        format: Annotated[str, typer.Option(help="Of --source: art-e or enron-qa.")] = "art-e",
        count: Annotated[int, typer.Option(help="How many to make, at most.", min=1)] = 600,
        seed: Annotated[int, typer.Option(help="Which ones are made.", min=0)] = 0,
    ) -> None:
        try:
            print(_write_questions(box, out, source, format, count, seed))
        except (ValueError, OSError) as error:
            _fail(str(error))

    return command


def _write_questions(box: Path, out: Path, source: Path | None, format: str, count: int, seed: int) -> str:
    """Write the questions; return the account of it."""
    import json

    import numpy as np

    from art_gym.envs.mail.questions import known_item_questions, load_annotated_qa, load_art_e
    from art_gym.envs.mail.store import MailStore
    from art_gym.errors import did_you_mean

    store = MailStore(box)
    if source is None:
        questions = known_item_questions(store, np.random.default_rng(seed), count)
        account = f"{len(questions)} questions made"
    else:
        loaders = {"art-e": load_art_e, "enron-qa": load_annotated_qa}
        if format not in loaders:
            raise ValueError(f"no format `{format}`{did_you_mean(format, loaders)}")
        questions, report = loaders[format](source, store)
        account = report.summary()
    lines = [json.dumps(question.to_json(), ensure_ascii=False) + "\n" for question in questions]
    out.write_text("".join(lines), encoding="utf-8")
    return f"{account}; written to {out}"


def _fail(reason: str) -> None:
    """Say what is wrong in one line and end with exit code 2."""
    import typer

    print(f"art-gym: {reason}", file=sys.stderr)
    raise typer.Exit(2)


def _import_with_progress(path: Path, out: Path, format: str | None) -> "ImportReport":
    """Import while a bar on the terminal shows how far it is."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from art_gym.envs.mail.imports import import_mail

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
    console = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("importing", total=None, amount="")

        def show(done: int, total: int | None) -> None:
            amount = f"{done:,} messages" if total is None else f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB"
            description = "indexing" if done == total else "importing"
            bar.update(task, completed=done, total=total, amount=amount, description=description)

        report = import_mail(path, out, format=format, on_progress=show)
        bar.update(task, total=1, completed=1, description="imported", amount=f"{report.imported:,} messages")
    return report


def _day(text: str | None) -> date | None:
    """A day as typed.

    Raises:
        ValueError: It is not written as 2024-01-31.
    """
    try:
        return date.fromisoformat(text) if text else None
    except ValueError as error:
        raise ValueError(f"{text!r} is no date; write it as 2024-01-31") from error


def _show_hits(
    box: Path,
    query: str,
    sender: str | None,
    recipient: str | None,
    after: str | None,
    before: str | None,
    mailbox: str | None,
    limit: int,
) -> None:
    """Search, and print the hits as a table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from art_gym.envs.mail.store import MailStore, query_words

    store = MailStore(box)
    words = query_words(query)
    hits = store.search(
        query,
        sender=sender,
        recipient=recipient,
        after=_day(after),
        before=_day(before),
        mailbox=mailbox,
        limit=limit,
    )
    table = Table(box=None, pad_edge=False)
    for title in ("date", "from", "subject", "text", "words"):
        table.add_column(title, no_wrap=title == "date")
    for hit in hits:
        header = store.header(hit.row)
        day = f"{header.date:%Y-%m-%d}" if header.date else "no date"
        cells = (day, header.sender.label, header.subject, store.snippet(hit.row, words))
        table.add_row(*(Text(cell) for cell in cells), f"{hit.matched}/{len(words)}")
    Console().print(table if hits else f"no mail found among {len(store):,}")
