"""``art/Email-v0``: find the e-mail, or the answer, in a mailbox."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from os import PathLike
from typing import Any, ClassVar, Literal

from art_gym.base import require_choice
from art_gym.env import Baseline, TextEnv
from art_gym.envs.mail.baselines import BASELINES, TEACHERS
from art_gym.envs.mail.collection import open_collection
from art_gym.envs.mail.grading import matches, says_nothing_found
from art_gym.envs.mail.questions import Question
from art_gym.envs.mail.rewards import REWARDS, Progress, episode_facts, failed_terms, right_terms
from art_gym.envs.mail.store.store import Hit, query_words
from art_gym.errors import ToolError
from art_gym.tasks import Task
from art_gym.tools import Outcome, tool

_PAGE = 1_500  # characters of a message on one page
_SNIPPET = 40  # characters of a result's snippet: enough to judge by, and a result stays one line
_LONGEST_FIELD = 200  # characters of a sender or subject in a list of results
_LONGEST_LINE = 1_000  # characters of a line above an opened mail
_MOST_RESULTS = 20
_MOST_SOURCES = 3


class EmailEnv(TextEnv):
    """Find the e-mail that a question asks for, or the answer to it, in a mailbox.

    ## Description
    The agent gets a question such as "Which mail has Maria's pallet count for Falcon?" and works with the
    mailbox through a handful of tools until it selects a mail or answers. Without arguments the mailbox is a
    generated company of some thousand messages, the same on every machine; any mailbox imported with
    ``art-gym mail import`` takes its place. Mail that was
    sent after the question, or is in another person's mailbox, is not visible.

    ## Action Space
    Text: one call of ``search``, ``filter``, ``sort``, ``read``, ``select`` or ``answer``.

    ## Observation Space
    Text. Results are one line a mail: date, sender, subject, a snippet around the words found, how many of
    the query's words the mail contains, and an id. Ids (``m1``, ``m2``, …) are given in order of appearance
    in the episode, so they cannot be known beforehand.

    ## Starting State
    The standing instructions and the question. The seed chooses the question.

    ## Rewards
    ``reward="outcome"`` (the default) pays at the end alone. The right mail or answer pays ``correct`` 1, and
    with it ``sources`` up to 0.1 for citing exactly the mails an answer rests on and ``quick`` up to 0.1 for
    turns left. Every other end costs 0.5: a wrong one (``wrong``), and none (``no_answer``), which is saying
    that the mailbox does not have what it has, or running out of turns. So silence is never better than a
    guess, and a policy that never succeeds earns -0.5 or less, whatever it finds and reads on the way. For a
    question that nothing answers, saying so is right. A reply that is no valid call costs
    ``invalid_action_penalty`` besides.

    ``reward="shaped"`` adds ``progress``: 0.2 when a right mail is first listed, 0.2 when one is first
    opened, and both taken back at the end. It tells an algorithm that credits single turns which of them
    helped; the sum of an episode is that of ``"outcome"``, so there is nothing to gain by looking around, and
    an algorithm that learns from the sum alone, as GRPO does by default, sees no difference.

    Answers are graded by normalised match with the accepted forms: one that names two amounts, dates, names
    or texts, however they are joined, or is longer than a sentence or two, is wrong. The grader
    knows no language but English: in another, the answer alone is the safest.

    ## Episode End
    Terminated by ``select`` and ``answer``; truncated after ``max_turns`` replies.

    ## Information
    The standard keys; at the end ``metrics`` also has ``found`` and ``read`` (0 or 1), ``searches`` and the
    question's ``difficulty``, and ``facts`` the expected and the given result, mails named by Message-ID.

    ## Arguments
    * ``mailbox``: a mail store made by ``art-gym mail import``; the generated one by default.
    * ``questions``: a list of ``Question``, or a path to a JSONL of them; by default the generated world's,
      or known-item questions made for the imported mailbox.
    * ``difficulty``: 1 (find a mail by three identifying words), 2 (among look-alikes), 3 (a fact, or
      nothing), 4 (two mails needed), a list of these, or ``None`` for all.
    * ``reward``: ``"outcome"`` or ``"shaped"``.
    * ``world_seed``: which generated world.
    * ``split``, ``max_turns``, ``invalid_action_penalty``, ``render_mode``: as in every ``TextEnv``.

    ## References
    OpenPipe's ART-E, an e-mail agent trained with GRPO. Ng, Harada and Russell (1999), "Policy invariance
    under reward transformations", for ``reward="shaped"``.

    ## Version History
    * v0: first version.
    """

    instructions: ClassVar[str] = (
        "You search a mailbox to answer a question. If it asks for a mail, end with select; if it asks for a "
        'fact, end with answer. If nothing in the mailbox answers it, answer "not in the mailbox". '
        "Results are listed newest first: date | from | subject | snippet | query words matched | id."
    )
    shared: ClassVar[tuple[str, ...]] = ("store", "reward_name")
    baselines: ClassVar[Mapping[str, Baseline]] = BASELINES
    teachers: ClassVar[Mapping[str, Baseline]] = TEACHERS

    def __init__(
        self,
        *,
        mailbox: str | PathLike[str] | None = None,
        questions: str | PathLike[str] | Iterable[Question] | None = None,
        difficulty: int | Iterable[int] | None = None,
        reward: str = "outcome",
        world_seed: int = 0,
        split: str = "train",
        max_turns: int = 8,
        invalid_action_penalty: float = 0.2,
        render_mode: str | None = None,
    ) -> None:
        require_choice("reward", reward, REWARDS)
        self.store, tasks = open_collection(mailbox, questions, world_seed=world_seed, difficulty=difficulty)
        self.reward_name = reward
        super().__init__(
            tasks,
            split=split,
            max_turns=max_turns,
            invalid_action_penalty=invalid_action_penalty,
            render_mode=render_mode,
        )

    def begin(self, task: Task) -> str:
        """Forget the last episode and show the question."""
        self._ids: dict[int, int] = {}
        self._words: list[str] = []
        self._results: list[tuple[int, int]] = []
        self._found: dict[int, Hit] = {}  # by the latest search, the best match first
        self._progress = Progress()
        self._result: dict[str, str] | None = None
        self._right = False
        self._mailbox: str | None = task.data["mailbox"]
        asked_on = task.data["asked_on"]
        self._until = datetime.fromisoformat(asked_on) if asked_on else None
        rows = [self.store.find(message_id) for message_id in task.data["gold_ids"]]
        self._gold = frozenset(row for row in rows if row is not None)
        return task.prompt

    @tool
    def search(
        self,
        query: str,
        sender: str | None = None,
        recipient: str | None = None,
        after: date | None = None,
        before: date | None = None,
        limit: int = 5,
    ) -> Outcome:
        """Find mails by words in subject, text and names; the best matches are listed, newest first.

        Args:
            query: Words to look for; mails with all of them come before mails with some.
            sender: Only mails from this person (name or address, or the beginning of either).
            recipient: Only mails to this person.
            after: Only mails of this day or later.
            before: Only mails of this day or earlier.
            limit: How many mails to list, 1 to 20.
        """
        if not 1 <= limit <= _MOST_RESULTS:
            raise ToolError(f"limit must be from 1 to {_MOST_RESULTS}, not {limit}")
        if after and before and after > before:
            raise ToolError(f"after ({after}) must not be later than before ({before})")
        hits = self._hits(query, limit, sender=sender, recipient=recipient, after=after, before=before)
        self._words = query_words(query)
        self._found = {hit.row: hit for hit in hits}
        self._results = [(hit.row, hit.matched) for hit in hits]
        self._results.sort(key=lambda result: -_seconds(self.store.header(result[0]).date))  # newest first
        self._progress.searches += 1
        return Outcome(self._listing(), self._progress_terms())

    @tool
    def filter(
        self,
        contains: str | None = None,
        sender: str | None = None,
        recipient: str | None = None,
        after: date | None = None,
        before: date | None = None,
    ) -> str:
        """Keep only some of the current results.

        Args:
            contains: Words that must all occur in the mail.
            sender: Only mails from this person.
            recipient: Only mails to this person.
            after: Only mails of this day or later.
            before: Only mails of this day or earlier.
        """
        self._need_results()
        words = len(query_words(contains or ""))
        everything = len(self.store)
        filters = {"sender": sender, "recipient": recipient, "after": after, "before": before}
        hits = self._hits(contains or "", everything, **filters)
        kept = {hit.row for hit in hits if hit.matched == words}
        self._results = [(row, matched) for row, matched in self._results if row in kept]
        return self._listing()

    @tool
    def sort(self, by: Literal["relevance", "date", "sender", "subject"], descending: bool = False) -> str:
        """Put the current results into another order.

        Args:
            by: What to sort by; relevance puts the best match first.
            descending: Whether to turn the order around.
        """
        self._need_results()
        headers = {row: self.store.header(row) for row, _ in self._results}
        ranks = {row: rank for rank, row in enumerate(self._found)}
        keys: dict[str, Callable[[int], Any]] = {
            "relevance": ranks.__getitem__,
            "date": lambda row: _seconds(headers[row].date),
            "sender": lambda row: str(headers[row].sender).lower(),
            "subject": lambda row: headers[row].subject.lower(),
        }
        self._results.sort(key=lambda result: keys[by](result[0]), reverse=descending)
        return self._listing()

    @tool
    def read(self, email_id: str, page: int = 1) -> Outcome:
        """Open one mail.

        Args:
            email_id: The id at the end of a result line, such as m3.
            page: Long mails have several pages.
        """
        row = self._row(email_id)
        message = self.store.message(row)
        body = message.body
        pages = max(1, -(-len(body) // _PAGE))
        if not 1 <= page <= pages:
            raise ToolError(
                f"{email_id.strip()} has {pages} page{'s' if pages > 1 else ''}, there is no page {page}"
            )
        self._progress.read |= row in self._gold
        when = f"{message.date:%Y-%m-%d %H:%M}" if message.date else "unknown"
        lines = [f"From: {message.sender}", f"To: {', '.join(map(str, message.to))}"]
        if message.cc:
            lines.append(f"Cc: {', '.join(map(str, message.cc))}")
        lines += [f"Date: {when}", f"Subject: {message.subject}"]
        lines = [_cut(line, _LONGEST_LINE) for line in lines]
        lines += ["", body[(page - 1) * _PAGE : page * _PAGE]]
        if pages > 1:
            lines.append(f"(page {page} of {pages})")
        return Outcome("\n".join(lines), self._progress_terms())

    @tool(ends=True)
    def select(self, email_id: str) -> Outcome:
        """End with this mail as the one that was asked for.

        Args:
            email_id: The id at the end of a result line, such as m3.
        """
        row = self._row(email_id)
        self._result = {"mail": self.store.message_id(row)}
        if self.task.data["kind"] != "known_item":
            return self._end(False, "The question asks for an answer, not for a mail.")
        right = row in self._gold
        return self._end(right, "This is the mail." if right else "This is not the mail that was asked for.")

    @tool(ends=True)
    def answer(self, text: str, sources: list[str] | None = None) -> Outcome:
        """End with an answer in a few words.

        Args:
            text: The answer alone: a name, a date, an amount, or "not in the mailbox".
            sources: The ids of the mails it rests on, at most three.
        """
        cited = {self._row(email_id) for email_id in sources or []}
        if len(cited) > _MOST_SOURCES:
            raise ToolError(f"cite at most {_MOST_SOURCES} mails, not {len(cited)}")
        kind, nothing = self.task.data["kind"], says_nothing_found(text, self.task.prompt)
        if nothing and kind != "unanswerable":
            return self._end(None, "You gave up.")
        self._result = {"answer": text}
        if kind == "known_item":
            return self._end(False, "The question asks for a mail: use select.")
        if kind == "unanswerable":
            words = "Right: nothing answers it." if nothing else "Nothing in the mailbox says so."
            return self._end(nothing, words)
        right = matches(text, self.task.data["answers"], self.task.data["answer_type"], self.task.prompt)
        share = len(cited & self._gold) / max(len(cited), len(self._gold), 1)
        return self._end(right, "This is right." if right else "This is wrong.", sources=share)

    def on_truncation(self) -> Outcome:
        """Running out of turns costs as much as a wrong answer."""
        return self._end(None, "No turns are left.")

    def facts(self) -> dict[str, Any]:
        """The expected and the given result, for judges; mails are named by Message-ID."""
        gold = list(map(self.store.message_id, self._gold))
        return episode_facts(self.task.data, self._result, gold, right=self._right)

    @property
    def listed(self) -> dict[int, int]:
        """The rows listed so far in this episode, each with the number of its id."""
        return dict(self._ids)

    @property
    def results(self) -> list[tuple[int, int]]:
        """The current results as (row, query words matched), in the order shown."""
        return list(self._results)

    def score(self, row: int) -> float:
        """The BM25 of one of the current results for the latest search, for scripted policies."""
        return self._found[row].score

    def _hits(self, query: str, limit: int, **filters: Any) -> list[Hit]:
        """Search what may be seen: the question's mailbox up to the question's date."""
        return self.store.search(query, mailbox=self._mailbox, until=self._until, limit=limit, **filters)

    def _progress_terms(self, *, ended: bool = False) -> dict[str, float]:
        return self._progress.terms(ended=ended) if self.reward_name == "shaped" else {}

    def _end(self, right: bool | None, words: str, *, sources: float = 0.0) -> Outcome:
        """The end of the episode; ``right`` is ``None`` without a mail or an answer."""
        paid, self._right = failed_terms(answered=right is not None), bool(right)
        if right:
            left = (self.max_turns - self.turn) / self.max_turns
            paid = right_terms(sources=sources, turns_left=left)
        terms = paid | self._progress_terms(ended=True)
        metrics = {
            "found": float(self._progress.found),
            "read": float(self._progress.read),
            "searches": float(self._progress.searches),
            "difficulty": float(self.task.data["difficulty"]),
        }
        return Outcome(words, terms, ends=True, success=bool(right), metrics=metrics)

    def _row(self, email_id: str) -> int:
        """The mail an id of this episode stands for; only what was listed has one."""
        number = email_id.strip().strip("[]()#\"'").lower().removeprefix("m")
        for row, given in self._ids.items():
            if str(given) == number:
                return row
        if not self._ids:
            raise ToolError(f"there is no mail `{email_id.strip()}` yet: search first")
        raise ToolError(f"no mail `{email_id.strip()}` was listed; ids so far are m1 to m{len(self._ids)}")

    def _need_results(self) -> None:
        if not self._results:
            raise ToolError("there are no results yet: search first")

    def _listing(self) -> str:
        if not self._results:
            return "No mail matches."
        lines = [f"{len(self._results)} mail{'s' if len(self._results) > 1 else ''}:"]
        for row, matched in self._results:
            number = self._ids.setdefault(row, len(self._ids) + 1)
            self._progress.found |= row in self._gold
            header = self.store.header(row)
            when = f"{header.date:%Y-%m-%d}" if header.date else "no date"
            found = f"{self.store.snippet(row, self._words, _SNIPPET)} | {matched}/{len(self._words)}"
            who, subject = _cut(header.sender.label, _LONGEST_FIELD), _cut(header.subject, _LONGEST_FIELD)
            lines.append(f"{when} | {who} | {subject} | {found} | m{number}")
        return "\n".join(lines)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _seconds(when: datetime | None) -> float:
    """For sorting; mail without a date is older than any other."""
    return when.timestamp() if when else 0.0
