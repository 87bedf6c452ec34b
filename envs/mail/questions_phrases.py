"""How people ask for a mail: requests, what they remember of it, and what else is on their mind.

Slots: ``{t}`` topic, ``{p}`` project, customer or place, ``{d}`` and ``{e}`` things, ``{s}`` a name; in
the clauses ``{x}`` and ``{y}`` matters of private life, ``{l}`` a place, ``{n}`` a colleague, ``{day}``
a weekday.
"""

from __future__ import annotations

REQUESTS: tuple[str, ...] = (
    "can you find {core}",
    "please find {core}",
    "I am looking for {core}",
    "I need {core}",
    "where is {core}",
    "do you still have {core}",
    "could you dig out {core}",
    "show me {core}",
    "help me find {core}",
    "I cannot find {core}",
    "please look for {core}",
    "get me {core}",
    "I want to read {core}",
    "there must be {core}",
    "send me {core}",
    "somewhere is {core}",
)

#: What is remembered, by the roles of the three telling words.
CORES: dict[str, tuple[str, ...]] = {
    "tpd": (
        "the mail about the {p} {t} that mentions the {d}",
        "the message that brings up the {d} in the {t} for {p}",
        "the {t} mail for {p} with a line on the {d}",
        "the mail on {p} where the {d} and the {t} are discussed",
        "the note about the {d} that belongs to the {p} {t}",
        "what somebody wrote on the {d} in the {t} of {p}",
        "the mail in which {p} wants the {d} for its {t}",
        "the message with the {d} in it, from the {t} thread on {p}",
        "that one mail of the {t} thread for {p}, the one with the {d}",
        "the answer about the {d}, something to do with {p} and its {t}",
        "the {p} mail that speaks of the {d} and the {t}",
        "the {d} mail, part of the {t}, and it was for {p}",
    ),
    "spd": (
        "the mail in which {s} writes about the {d} for {p}",
        "the message from {s} on {p} that mentions the {d}",
        "what {s} had to say on the {d} at {p}",
        "the {p} mail where {s} brings up the {d}",
        "the note on the {d} that {s} sent about {p}",
        "the {p} message with the {d} in it, written by {s}",
        "the mail {s} wrote when {p} asked about the {d}",
        "the mail on the {d} for {p}, signed by {s}",
    ),
    "std": (
        "the mail from {s} about the {t} that mentions the {d}",
        "the {t} mail in which {s} speaks of the {d}",
        "the message on the {d} that {s} sent about the {t}",
        "what {s} wrote on the {t} and the {d}",
        "the note about the {d} in the {t} thread, written by {s}",
        "the {t} message where the {d} came up, signed by {s}",
        "the mail signed by {s} with the {d} and the {t} in it",
        "the mail on the {d} and the {t}, the one {s} wrote",
    ),
    "stp": (
        "the mail from {s} about the {p} {t}",
        "the message that {s} sent on the {t} for {p}",
        "what {s} wrote about {p} and its {t}",
        "the {p} mail in which {s} speaks of the {t}",
        "the {t} mail for {p} that was written by {s}",
        "the note on the {t} of {p}, signed by {s}",
    ),
    "abc": (
        "the mail that mentions {a}, {b} and {c}",
        "the message with the words {a}, {b} and {c} in it",
        "the mail about {a} where {b} and {c} come up",
        "the note on {a} and {b}, something with {c}",
        "what somebody wrote on {a}, {b} and {c}",
        "the mail on {a}, the one that also speaks of {b} and {c}",
        "that one mail with {a} and {b} in it, and with {c} too",
        "the message in which {a} and {b} stand beside {c}",
    ),
    "sab": (
        "the mail from {s} that mentions {a} and {b}",
        "the message in which {s} writes about {a} and {b}",
        "what {s} wrote on {a} and {b}",
        "the mail on {a} and {b}, signed by {s}",
        "the {a} mail from {s}, the one with {b} in it",
        "the note about {a} that {s} sent, something with {b}",
    ),
    "pde": (
        "the mail on {p} that mentions the {d} and the {e}",
        "the message about the {d} and the {e} for {p}",
        "the {p} mail with the {d} in it, and the {e} too",
        "what was written on the {d}, the {e} and {p}",
        "the note where the {d} and the {e} come up for {p}",
        "the mail about the {d} that also puts the {e} on the list for {p}",
    ),
}

#: Added to a request for a mail that its words alone do not tell from others.
SENT_FORMS: tuple[str, ...] = (
    "It was sent in {m} {year}.",
    "The date is some day in {m} {year}.",
    "It is from {m} {year}.",
)

#: Clauses that stand before the request, then after it.
BEFORE: tuple[str, ...] = (
    "before the {x} in {l},",
    "after the {x} on {day},",
    "now that the {x} in {l} is over,",
    "on the way to the {x} {n} asked me:",
    "{n} wants to know before the {x} on {day}:",
    "between the {x} and the {y} one request:",
    "my {x} is on {day} and the {y} comes next, so",
    "I am in {l} for the {x} until {day},",
    "sorry to write from the {x} in {l}, but",
    "{n} and I met at the {x} in {l};",
    "the {x} on {day} made me forget everything,",
    "as I told {n} at the {x},",
)
AFTER: tuple[str, ...] = (
    ", before I leave for the {x} in {l}",
    ", because {n} asked me about it at the {x}",
    "; I read it on {day} between the {x} and the {y}",
    "; it came while I was at the {x} in {l}",
    "; {n} wants it after the {x}",
    "; I promised it to {n} for the {x} on {day}",
    "; I need it by {day}, after that there is the {x}",
    "; I lost it somewhere between the {x} and {l}",
    "; I have to show it to {n} at the {y} or the {x}",
    "; I will be at the {x} in {l} until {day}",
    "; the {x} and the {y} can wait",
    "; we spoke about it at the {x} with {n}",
)

LOOKALIKE: dict[str, tuple[str, ...]] = {
    "dated": (
        "Which is the {k} mail that {s} sent {when}?",
        "Find the {k} mail from {s}, sent {when}.",
        "I need the {k} by {s} written {when}.",
        "Please show me what {s} sent as the {k} {when}.",
    ),
    "first": (
        "Which was the first {k} mail from {s}?",
        "Find the first {k} that {s} sent.",
        "Where does the {k} from {s} begin? I need the first one.",
    ),
    "last": (
        "Which was the last {k} mail from {s}?",
        "Find the last {k} that {s} sent.",
        "I need the {k} from {s}, but only the last one.",
    ),
    "opening": (
        "Find the first mail of the {p} {t} thread about the {d}, not the answers.",
        "How did the {t} for {p} with the {d} begin? I want the very first mail.",
        "Show me the mail that opened the {p} {t} on the {d}, without the answers to it.",
    ),
    "closing": (
        "Find the last mail of the {p} {t} thread that began with the {d}.",
        "What was the last word in the {t} thread for {p} that was about the {d}?",
        "Show me the mail that ended the {p} {t} thread on the {d}.",
    ),
}

#: Around a question after a fact; ``{q}`` is the question itself.
FACT_FORMS: tuple[str, ...] = ("{q}?", "Tell me: {q}?", "{n} wants to know: {q}?", "Quick question: {q}?")
FINAL_FORMS: tuple[str, ...] = (
    "{q} in the end?",
    "Things changed more than once: {q} in the end?",
    "After all changes, {q}?",
    "{q}, going by the last word?",
)
DIFFERENCE_FORMS: tuple[str, ...] = (
    "By how many euros did the sum in the {p} {t} for the {d} change from the first mail to the last?",
    "The {t} for {p} about the {d} was corrected. How many euros lie between the first and the last figure?",
)
SUM_FORMS: tuple[str, ...] = (
    "What do the {p} {t} for the {d} and the {t2} for the {d2} come to together?",
    "How much is it in all for {p}: the {t} about the {d} and the {t2} about the {d2}?",
)
DAYS_FORMS: tuple[str, ...] = (
    "How many days lie between the day of the {p} {t} for the {d} and the day of the {t2} for the {d2}?",
    "At {p}, how many days are there from the {t} about the {d} to the {t2} about the {d2}, in either order?",
)
PERSON_FORMS: tuple[str, ...] = (
    "What is the {w} number of the person {q}?",
    "I must reach the person {q}. What is the {w} number?",
    "Give me the {w} number of the person {q}.",
)

WORDS = "status reminder extension seat percent number in at of the first last of on sent when"
