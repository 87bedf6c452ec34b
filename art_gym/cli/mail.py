"""``art-gym mail``: import real mail into a mailbox file, search it, and make questions about it."""

import json
import shlex
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from art_gym.cli.common import fail, progress, user_errors
from art_gym.terminal import visible

if TYPE_CHECKING:
    from art_gym.envs.mail.importers.load import ImportReport


Box = Annotated[Path, typer.Argument(help="The mailbox file.", show_default=False)]
mail_app = typer.Typer(help="Mailboxes for art/Email-v0.", no_args_is_help=True)


@mail_app.command("import")
def import_command(
    sources: Annotated[list[Path], typer.Argument(help="The mail to import.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The mailbox file to write.", show_default=False)],
    format: Annotated[
        str | None, typer.Option(help="mbox, eml or jsonl, for every file.", show_default="detected")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file at --out.")] = False,
) -> None:
    """Import mail into a mailbox file that art/Email-v0 can search.

    SOURCES are mbox, JSONL and .eml files, folders of them (a Maildir, a Thunderbird profile, a tree like the
    Enron release) and .zip and .tar archives, compressed or not. What cannot be read is listed with a reason.

    Example: art-gym mail import ~/Mail/archive.mbox takeout.zip --out box.db
    """
    if out.exists() and not force:
        fail(f"{out} exists already; choose another --out, or replace it with --force")
    try:
        with user_errors():
            report = _import_with_progress(sources, out, format)
    except KeyboardInterrupt:
        print(f"interrupted: nothing was written to {out}", file=sys.stderr)
        raise typer.Exit(130) from None
    print(visible(report.summary()))
    print(f"written to {out}; search it with: art-gym mail search {shlex.quote(str(out))} WORDS")


def _import_with_progress(sources: list[Path], out: Path, format: str | None) -> "ImportReport":
    from art_gym.envs.mail.importers.load import import_mail

    with progress() as bar:
        task = bar.add_task("importing", total=None, amount="")

        def show(done: int, total: int | None) -> None:
            amount = f"{done:,} messages" if total is None else f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB"
            description = "indexing" if done == total else "importing"
            bar.update(task, completed=done, total=total, amount=amount, description=description)

        report = import_mail(sources, out, format=format, on_progress=show)
        bar.update(task, total=1, completed=1, description="imported", amount=f"{report.imported:,} messages")
    return report


@mail_app.command("search")
def search_command(
    box: Box,
    query: Annotated[list[str], typer.Argument(help="Words to look for.", show_default=False)],
    sender: Annotated[str | None, typer.Option(help="Only mail from this person.")] = None,
    recipient: Annotated[str | None, typer.Option(help="Only mail to this person.")] = None,
    after: Annotated[str | None, typer.Option(help="First day, as 2024-01-31.")] = None,
    before: Annotated[str | None, typer.Option(help="Last day, as 2024-01-31.")] = None,
    mailbox: Annotated[str | None, typer.Option(help="Only mail in this mailbox.")] = None,
    limit: Annotated[int, typer.Option(help="The most hits to show.", min=1)] = 10,
) -> None:
    """Search a mailbox file; mail with all the words comes first.

    Each mail is shown with how many of the words it holds, the text around them, and its Message-ID, which
    questions of your own name in `gold_ids`.

    Example: art-gym mail search box.db quarterly budget --sender ann --after 2024-01-01
    """
    from art_gym.envs.mail.store.store import MailStore, query_words

    text = " ".join(query)
    words = query_words(text)
    with user_errors():
        store = MailStore(box)
        hits = store.search(
            text,
            sender=sender,
            recipient=recipient,
            after=_day(after),
            before=_day(before),
            mailbox=mailbox,
            limit=limit,
        )
        for hit in hits:
            header = store.header(hit.row)
            day = f"{header.date:%Y-%m-%d}" if header.date else "no date"
            print(visible(f"{day} | {header.sender.label} | {header.subject} | {hit.matched}/{len(words)}"))
            print(visible(f"    {store.snippet(hit.row, words)}"))
            print(visible(f"    Message-ID: {store.message_id(hit.row)}"))
        if not hits:
            print(f"no mail found among {len(store):,}")


def _day(text: str | None) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError as error:
        raise ValueError(f"{text!r} is not a date; write it as 2024-01-31") from error


@mail_app.command("questions")
def questions_command(
    box: Box,
    out: Annotated[Path, typer.Option(help="The JSONL file to write.", show_default=False)],
    count: Annotated[int, typer.Option(help="How many to make, at most.", min=1)] = 600,
    seed: Annotated[int, typer.Option(help="Random seed of the questions.", min=0)] = 0,
    writer: Annotated[
        str | None, typer.Option(help="A model that writes them: openai:MODEL@URL.", show_default=False)
    ] = None,
) -> None:
    """Make questions about a mailbox from its own mail, for art/Email-v0's `questions`.

    They are known-item questions in English. With --writer, a language model on any server with OpenAI's API
    (its key from OPENAI_API_KEY) writes questions with answers, in the language of the mail; each is checked.
    Its answers are kept beside --out: after an interrupt the same command goes on and asks nothing twice.

    Examples: art-gym mail questions box.db --out questions.jsonl --count 500

    art-gym mail questions box.db --out made.jsonl --writer openai:qwen3@http://localhost:8000/v1
    """
    from art_gym.envs.mail.questions import known_item_questions
    from art_gym.envs.mail.store.store import MailStore

    with user_errors():
        store = MailStore(box)
        if out.exists() and out.samefile(box):
            raise ValueError(f"the questions would replace the mailbox {box}; choose another --out")
        if writer is not None:
            from art_gym.cli.mail_writer import write_questions

            return write_questions(store, writer, out, count, seed)
        questions = known_item_questions(store, np.random.default_rng(seed), count)
        lines = [json.dumps(question.to_json(), ensure_ascii=False) + "\n" for question in questions]
        out.touch(0o600)
        out.write_text("".join(lines), encoding="utf-8")
    print(f"{len(questions)} questions made; written to {out}")
